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
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.engine_config import EngineInfo
from trtllm_hpc.reference.generation import NO_END, GenerationRequest, Sampling, Words

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
_OTHER_NAMES = {name: text for text, name in TEXT_NAMES.items()}

_ENCODER = "models with an encoder"
_DRAFT = "speculative decoding"
_IMAGES = "images and videos"
_LORA = "LoRA adapters"
_BIAS = "a bias of tokens"

_TENSORS = {
    "encoder_input_features": _ENCODER,
    "draft_input_ids": _DRAFT,
    "draft_logits": _DRAFT,
    "prompt_embedding_table": "prompt tuning",
    "lora_weights": _LORA,
    "lora_config": _LORA,
    "lora_task_id": _LORA,
}
"""Refused inputs of ``tensorrt_llm`` in which zero is a value."""
_TOKEN_INPUTS = {
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
}
"""Others with the value that asks for nothing. What only qualifies one of them asks for nothing either."""
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
KNOWN_INPUTS = frozenset(
    {
        *(*_TENSORS, *_TOKEN_INPUTS, *_TEXT_INPUTS, *TEXT_NAMES, *_OTHER_NAMES),
        *("input_ids", "input_lengths", "text_input", "num_return_sequences", "stop"),
        *("prompt_table_extra_id", "prompt_table_extra_ids", "prompt_vocab_size"),
        *("decoder_input_ids", "decoder_input_lengths", "draft_acceptance_threshold", "use_draft_logits"),
        *("bad_words_list", "stop_words", "stop_words_list", "embedding_bias_weights"),
        *("return_log_probs", "exclude_input_in_output", "repetition_penalty", "temperature"),
        *("beam_search_diversity_rate", "early_stopping", "end_id", "pad_id", "min_length", "random_seed"),
        *("runtime_top_p_min", "runtime_top_p_reset_ids"),
    }
)
"""Names of all inputs of ``tensorrt_llm`` and of the models that take text."""

_SLIP = 0.8
"""How alike two names are when one is taken for a slip of the other: above the ratio of "id" and "end_id"."""
_REQUEST_TYPE = "triton_trtllm_request_type"
_MOST_SEQUENCES = 1024
_SEEDS = 1 << 64


@dataclass(frozen=True)
class Part:
    """One answer to a Triton request: for one row of its batch and one of its return sequences."""

    request: GenerationRequest
    batch_index: int | None = None
    """Index of its prompt in the request; ``None`` for the only one, since upstream does not send it then."""
    sequence_index: int | None = None
    """Its index among the sequences of its prompt; ``None`` for the only one."""


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
        part
        for index in range(len(prompts))
        for part in _sequences(
            _Row({name: array[index] for name, array in inputs.items()}),
            info,
            index if len(prompts) > 1 else None,
        )
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
    """Refuse parameters of a Triton request that were meant as inputs; others are ignored, as upstream does.

    Triton's generate endpoint makes a parameter of each JSON key that is not an input of the model.
    """
    try:
        parameters = json.loads(request.parameters() or "{}")
    except ValueError as error:
        # Triton's own parser lets such bytes pass.
        raise RequestFailed(f"A request parameter is not valid UTF-8: {error}.") from error
    for name in sorted(parameters):
        near = get_close_matches(name, KNOWN_INPUTS, n=1, cutoff=_SLIP)
        # TensorRT-LLM's own client sends "Streaming" besides the tensor of the same meaning.
        if near and name != "Streaming":
            meant = f"Did you mean {near[0]}?" if near[0] != name else "Leave it out."
            raise RequestFailed(f"{name} is not an input of this model and would change nothing. {meant}")
    kind = parameters.get(_REQUEST_TYPE, "context_and_generation")
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
        array = self.array(name)
        return _within(name, default if array is None else int(array.item()), least, most)

    def number(self, name: str, default: float, *, least: float = 0.0, most: float = math.inf) -> float:
        """A finite number. Raises RequestFailed if it is not, or not within bounds."""
        array = self.array(name)
        value = default if array is None else float(array.item())
        if not math.isfinite(value):
            raise RequestFailed(f"{_named(name)} is {value}; it must be a finite number.")
        return _within(name, value, least, most)


def _named(name: str) -> str:
    """An input's name, with the one that the models have which take text."""
    return f"{name} ({_OTHER_NAMES[name]})" if name in _OTHER_NAMES else name


def _within(name: str, value: _Number, least: float, most: float) -> _Number:
    if not least <= value <= most:
        # A value as the client wrote it: 0.7 as a 32-bit float is 0.699999988.
        shown = value if isinstance(value, int) else f"{value:.6g}"
        bounds = f"at least {least:g}" if most >= 2**64 else f"{least:g} to {most}"
        raise RequestFailed(f"{_named(name)} is {shown}; it must be {bounds}.")
    return value


def _refusal(name: str, what: str) -> RequestFailed:
    return RequestFailed(f"{name} asks for {what}, which the reference backend does not have. Leave it out.")


def _refuse_unsupported(row: _Row) -> None:
    for name, what in _TENSORS.items():
        if row.array(name) is not None:
            raise _refusal(name, what)
    for name, (nothing, what) in _TOKEN_INPUTS.items():
        array = row.array(name)
        if array is not None and (array != nothing).any():
            raise _refusal(name, what)
    # Upstream's preprocessing always makes one token, which a model without an encoder does not read.
    decoder, bad_words = row.array("decoder_input_ids"), row.array("bad_words_list")
    if decoder is not None and decoder.size > 1:
        raise _refusal("decoder_input_ids", _ENCODER)
    # The second row holds the ends of the words, and then -1.
    if bad_words is not None and (bad_words[1] > 0).any():
        raise _refusal("bad_words_list", "bad words")


def _sequences(row: _Row, info: EngineInfo, index: int | None) -> list[Part]:
    """The parts of the answer to one prompt.

    They differ by their seed: each adds its index (``LlmRequest::createChildRequest`` in TensorRT-LLM's
    llmRequest.cpp).
    """
    request = _request(row, info)
    count = row.integer("num_return_sequences", 1, least=1, most=_MOST_SEQUENCES)
    seeds = [(request.sampling.seed + sequence) % _SEEDS for sequence in range(count)]
    return [
        Part(
            replace(request, sampling=replace(request.sampling, seed=seed)),
            index,
            sequence if count > 1 else None,
        )
        for sequence, seed in enumerate(seeds)
    ]


def _request(row: _Row, info: EngineInfo) -> GenerationRequest:
    _refuse_unsupported(row)
    if row.array("request_output_len") is None:
        # Triton only compares the number of inputs with that of the required ones.
        raise RequestFailed(f"{_named('request_output_len')} is missing: the most tokens to generate.")
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
    return GenerationRequest(
        prompt=tuple(prompt[:length]),
        max_new_tokens=new,
        end_id=row.integer("end_id", NO_END, least=NO_END, most=info.vocab_size - 1),
        sampling=_sampling(row),
        stop_words=_stop_words(row, info),
        return_log_probs=bool(row.integer("return_log_probs")),
        exclude_input=bool(row.integer("exclude_input_in_output")),
        streaming=bool(row.integer("streaming")),
    )


def _sampling(row: _Row) -> Sampling:
    """Read the sampling settings.

    Without ``runtime_top_k`` and ``runtime_top_p``, or with zeros, decoding is greedy; if only one is set,
    the other sets no limit. At a temperature of 0, too: TensorRT-LLM divides the logits by it plus 1e-6.
    """
    top_k = row.integer("runtime_top_k", least=0)
    top_p = row.number("runtime_top_p", 0.0, most=1)
    temperature, repetition = row.number("temperature", 1.0), row.number("repetition_penalty", 1.0)
    if repetition == 0:
        raise RequestFailed("repetition_penalty is 0; it must be above 0.")
    is_greedy = temperature == 0 or (top_k == 0 and top_p == 0)
    return Sampling(
        temperature=temperature or 1.0,
        top_k=1 if is_greedy else top_k,
        top_p=top_p or 1.0,
        repetition_penalty=repetition,
        min_new_tokens=row.integer("min_length", least=0),
        seed=row.integer("random_seed") % _SEEDS,
    )


def _stop_words(row: _Row, info: EngineInfo) -> Words:
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
