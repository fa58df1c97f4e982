"""Reads and checks one request to the ``tensorrt_llm`` model.

Names, types, defaults and meanings of the tensors are those of NVIDIA's TensorRT-LLM 0.16 and its backend for
Triton (``inflight_batcher_llm/src/utils.cc`` of tensorrtllm_backend v0.16.0,
``cpp/tensorrt_llm/executor/samplingConfig.cpp`` and ``layers/defaultDecodingParams.h`` of TensorRT-LLM). What
this backend cannot do is refused by name, never ignored. Triton has checked types and shapes by
``config.pbtxt``, and that every input has a row for each prompt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.engine_config import EngineInfo
from trtllm_hpc.reference.generation import NO_END, GenerationRequest

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]
_Number = TypeVar("_Number", int, float)

TEXT_NAMES = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
    "max_tokens": "request_output_len",
}
"""Inputs of the models that take text, by name, to the same of ``tensorrt_llm`` that have another name."""

_ENCODER = "models with an encoder"
_DRAFT = "speculative decoding"
_IMAGES = "images and videos"
_LORA = "LoRA adapters"
_BIAS = "a bias of tokens"

_TOKEN_INPUTS: Mapping[str, tuple[float | None, str]] = {
    "encoder_input_features": (None, _ENCODER),
    "draft_input_ids": (None, _DRAFT),
    "draft_logits": (None, _DRAFT),
    "prompt_embedding_table": (None, "prompt tuning"),
    "lora_weights": (None, _LORA),
    "lora_config": (None, _LORA),
    "lora_task_id": (None, _LORA),
    "encoder_output_lengths": (0, _ENCODER),
    "cross_attention_mask": (0, _ENCODER),
    "skip_cross_attn_blocks": (0, _ENCODER),
    "context_phase_params": (0, "disaggregated serving"),
    "return_kv_cache_reuse_stats": (0, "statistics of a reused KV cache"),
    "return_context_logits": (0, "logits"),
    "return_generation_logits": (0, "logits"),
    "embedding_bias": (0, _BIAS),
    "presence_penalty": (0, "a penalty for presence"),
    "frequency_penalty": (0, "a penalty for frequency"),
    "runtime_top_p_decay": (1, "a top p that changes during a request"),
    "beam_width": (1, "beam search"),
    "num_return_sequences": (1, "several answers to a prompt"),
}
"""Refused inputs of ``tensorrt_llm``, each with the value that asks for nothing, if there is one besides an
empty tensor, and with what other values ask for. An input that only qualifies one of these is ignored.
"""
_TEXT_INPUTS = {
    "decoder_text_input": ("DECODER_QUERY", _ENCODER),
    "image_input": ("", _IMAGES),
    "image_bytes_input": ("IMAGE_BYTES", _IMAGES),
    "image_url_input": ("IMAGE_URL", _IMAGES),
    "video_bytes_input": ("VIDEO_BYTES", _IMAGES),
    "num_draft_tokens": ("", _DRAFT),
    "bad_words": ("BAD_WORDS_DICT", "bad words"),
    "embedding_bias_words": ("EMBEDDING_BIAS_WORDS", _BIAS),
}
"""Those of the models that take text: the name in ``preprocessing``, if any, and what they ask for."""
_REQUEST_TYPE = "triton_trtllm_request_type"
_SEEDS = 1 << 64


@dataclass(frozen=True)
class Part:
    """One answer to a Triton request: for one row of its batch."""

    request: GenerationRequest
    batch_index: int | None = None
    """Index of its prompt in the request; ``None`` for the only one, since upstream does not send it then."""


def parse(inputs: Inputs, info: EngineInfo, *, decoupled: bool) -> tuple[Part, ...]:
    """Read the inputs of one Triton request; one that stops another, with the same id, has no parts.

    Raises RequestFailed if it exceeds the engine's limits, or this backend does not support it.
    """
    stop, prompts = inputs.get("stop"), inputs.get("input_ids")
    if stop is not None and stop.any():
        return ()
    if prompts is None:
        raise RequestFailed("input_ids is missing: it must hold the tokens of the prompt.")
    parts = tuple(
        Part(
            _request(_Row({name: array[index] for name, array in inputs.items()}), info),
            index if len(prompts) > 1 else None,
        )
        for index in range(len(prompts))
    )
    if not decoupled and len(parts) > 1:
        raise RequestFailed(
            f"The request wants {len(parts)} answers, but a model that is not decoupled sends one. "
            "Send one prompt a request, or serve with repository.decoupled: true."
        )
    if not decoupled and parts[0].request.streaming:
        raise RequestFailed(
            "streaming=true needs a decoupled model. Leave it out, or serve with repository.decoupled: true."
        )
    return parts


def check_parameters(request: Any) -> None:
    """Refuse a Triton request whose parameters ask for disaggregated serving; ignore others, as upstream.

    Triton's generate endpoint makes a parameter of each JSON key that is not an input of the model.
    """
    try:
        kind = json.loads(request.parameters() or "{}").get(_REQUEST_TYPE, "context_and_generation")
    except ValueError as error:
        # Triton's own parser lets such bytes pass.
        raise RequestFailed(f"A request parameter is not valid UTF-8: {error}.") from error
    if kind != "context_and_generation":
        raise _refusal(f"{_REQUEST_TYPE}={kind}", "disaggregated serving")


def refuse_unsupported_text(arrays: Mapping[str, Array]) -> None:
    """Refuse what the inputs of a model that takes text ask for in vain, by its own names or preprocessing's.

    Empty texts and zeros ask for nothing. Raises RequestFailed with the input's name.
    """
    for name, (inner, what) in _TEXT_INPUTS.items():
        if any(arrays[it].any() for it in (name, inner) if it in arrays):
            raise _refusal(f"{name} ({inner})" if inner else name, what)


class _Row:
    """The inputs of one prompt of a request."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def array(self, name: str) -> Array | None:
        """A tensor without its batch dimension; ``None`` if it was not sent or is empty."""
        array = self._arrays.get(name)
        return None if array is None or array.size == 0 else array

    def integer(self, name: str, default: int = 0, *, least: int = -(2**63), most: int = 2**64) -> int:
        """An integer input, or a boolean one. Raises RequestFailed if it is not within bounds."""
        return int(self.number(name, default, least=least, most=most))

    def number(self, name: str, default: _Number, *, least: float = 0, most: float = math.inf) -> _Number:
        """A finite number. Raises RequestFailed if it is not, or not within bounds."""
        array = self.array(name)
        value: _Number = default if array is None else array.item()
        # A value as the client wrote it: 0.7 as a 32-bit float is 0.699999988.
        shown = value if isinstance(value, int) else f"{value:.6g}"
        if not math.isfinite(value):
            raise RequestFailed(f"{name} is {shown}; it must be a finite number.")
        if not least <= value <= most:
            bounds = f"at least {least:g}" if most >= 2**64 else f"{least:g} to {most}"
            raise RequestFailed(f"{name} is {shown}; it must be {bounds}.")
        return value


def _refusal(name: str, what: str) -> RequestFailed:
    return RequestFailed(f"{name} asks for {what}, which the reference backend does not have. Leave it out.")


def _refuse_unsupported(row: _Row) -> None:
    for name, (nothing, what) in _TOKEN_INPUTS.items():
        array = row.array(name)
        if array is not None and (nothing is None or (array != nothing).any()):
            raise _refusal(name, what)
    # Upstream's preprocessing always makes one token, which a model without an encoder does not read.
    decoder, bad_words = row.array("decoder_input_ids"), row.array("bad_words_list")
    if decoder is not None and decoder.size > 1:
        raise _refusal("decoder_input_ids", _ENCODER)
    # The second row holds the ends of the words, and then -1.
    if bad_words is not None and (bad_words[1] > 0).any():
        raise _refusal("bad_words_list", "bad words")


def _request(row: _Row, info: EngineInfo) -> GenerationRequest:
    _refuse_unsupported(row)
    if row.array("request_output_len") is None:
        raise RequestFailed("request_output_len (max_tokens) is missing.")
    array, new = row.array("input_ids"), row.integer("request_output_len", least=1)
    prompt = [] if array is None else array.tolist()
    length = row.integer("input_lengths", len(prompt))
    total = length + new
    if not 0 <= length <= len(prompt):
        raise RequestFailed(f"input_lengths is {length}, but input_ids holds {len(prompt)} tokens.")
    if length == 0:
        raise RequestFailed("The prompt is empty: input_ids must hold at least one token.")
    if length > info.max_input_len:
        raise RequestFailed(
            f"The prompt has {length} tokens; this engine was built for max_input_len {info.max_input_len}."
        )
    if total > info.max_seq_len:
        raise RequestFailed(
            f"The prompt's {length} tokens and the {new} asked for make {total}; "
            f"this engine was built for max_seq_len {info.max_seq_len}."
        )
    _check_vocabulary("input_ids", prompt[:length], info)
    # Without both, or with zeros, decoding is greedy; if only one is set, the other sets no limit. It is
    # greedy at a temperature of 0, too: TensorRT-LLM divides the logits by it plus 1e-6.
    top_k, top_p = row.integer("runtime_top_k", least=0), row.number("runtime_top_p", 0.0, most=1)
    temperature, repetition = row.number("temperature", 1.0), row.number("repetition_penalty", 1.0)
    if repetition == 0:
        raise RequestFailed("repetition_penalty is 0; it must be above 0.")
    return GenerationRequest(
        prompt=tuple(prompt[:length]),
        max_new_tokens=new,
        end_id=row.integer("end_id", NO_END, least=NO_END, most=info.vocab_size - 1),
        temperature=temperature or 1.0,
        top_k=1 if temperature == 0 or (top_k == 0 and top_p == 0) else top_k,
        top_p=top_p or 1.0,
        repetition_penalty=repetition,
        min_new_tokens=row.integer("min_length", least=0),
        seed=row.integer("random_seed") % _SEEDS,
        stop_words=_stop_words(row, info),
        return_log_probs=bool(row.integer("return_log_probs")),
        exclude_input=bool(row.integer("exclude_input_in_output")),
        streaming=bool(row.integer("streaming")),
    )


def _stop_words(row: _Row, info: EngineInfo) -> tuple[tuple[int, ...], ...]:
    """Read words in upstream's layout: a row with all their tokens, and a row with their ends, then -1."""
    array = row.array("stop_words_list")
    if array is None:
        return ()
    tokens, ends = array.tolist()
    count = ends.index(-1) if -1 in ends else len(ends)
    bounds = list(pairwise([0, *ends[:count]]))
    if set(ends[count:]) - {-1} or any(not start < end <= len(tokens) for start, end in bounds):
        raise RequestFailed(
            f"The second row of stop_words_list is {ends}; it must hold the ends of the words within "
            "the first row, each above the one before, and then -1."
        )
    words = tuple(tuple(tokens[start:end]) for start, end in bounds)
    _check_vocabulary("stop_words_list", chain.from_iterable(words), info)
    return words


def _check_vocabulary(name: str, tokens: Iterable[int], info: EngineInfo) -> None:
    outside = next((token for token in tokens if not 0 <= token < info.vocab_size), None)
    if outside is not None:
        raise RequestFailed(
            f"{name} holds {outside}; this engine's vocabulary is 0 to {info.vocab_size - 1}."
        )
