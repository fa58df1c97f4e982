"""Reading and checking of one request to the ``tensorrt_llm`` model.

Names, types, defaults and meanings of the tensors are those of NVIDIA's TensorRT-LLM 0.16 and its backend for
Triton (``inflight_batcher_llm/src/utils.cc`` of tensorrtllm_backend v0.16.0,
``cpp/tensorrt_llm/executor/samplingConfig.cpp`` and ``layers/defaultDecodingParams.h`` of TensorRT-LLM).
Inputs that this backend does not support are refused by name, never ignored. Triton has checked types and
shapes by ``config.pbtxt``, and that every input has a row for each prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.engine_folder import EngineInfo
from trtllm_hpc.reference.generation import NO_END, GenerationRequest

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]
"""Input arrays by name, each with one row for the single prompt."""
_Number = TypeVar("_Number", int, float)

_REFUSED: Mapping[str, tuple[str, ...]] = {
    "models with an encoder": (
        *("encoder_input_features", "encoder_output_lengths", "cross_attention_mask"),
        *("skip_cross_attn_blocks", "decoder_text_input", "DECODER_QUERY"),
    ),
    "speculative decoding": ("draft_input_ids", "draft_logits", "num_draft_tokens"),
    "prompt tuning": ("prompt_embedding_table",),
    "LoRA adapters": ("lora_weights", "lora_config", "lora_task_id"),
    "disaggregated serving": ("context_phase_params",),
    "statistics of a reused KV cache": ("return_kv_cache_reuse_stats",),
    "logits": ("return_context_logits", "return_generation_logits"),
    "a bias of tokens": ("embedding_bias", "embedding_bias_words", "EMBEDDING_BIAS_WORDS"),
    "bad words": ("bad_words", "BAD_WORDS_DICT", "bad_words_list"),
    "a penalty for presence": ("presence_penalty",),
    "a penalty for frequency": ("frequency_penalty",),
    "a top p that changes during a request": ("runtime_top_p_decay",),
    "beam search": ("beam_width",),
    "several answers to a prompt": ("num_return_sequences",),
    "images and videos": (
        *("image_input", "image_bytes_input", "image_url_input", "video_bytes_input"),
        *("IMAGE_BYTES", "IMAGE_URL", "VIDEO_BYTES"),
    ),
}
"""Unsupported features, each with the inputs of all models that request it. An input that only qualifies one
of these is ignored."""
_WHAT = {name: what for what, names in _REFUSED.items() for name in names}
_ALWAYS_ASKS = frozenset(
    {
        *("lora_weights", "lora_config", "lora_task_id", "draft_input_ids", "draft_logits"),
        *("prompt_embedding_table", "encoder_input_features"),
    }
)
"""Inputs that request an unsupported feature with any value."""
_NOTHING = {"runtime_top_p_decay": 1, "beam_width": 1, "num_return_sequences": 1, "bad_words_list": -1}
"""Values of inputs, besides 0 and empty texts, that request nothing."""
_SEEDS = 1 << 64


def parse(inputs: Inputs, info: EngineInfo, *, decoupled: bool) -> GenerationRequest | None:
    """Return one Triton request, or ``None`` if it stops other requests with the same id.

    Raises RequestFailed if the request exceeds the engine's limits or uses an unsupported feature.
    """
    stop, prompts = inputs.get("stop"), inputs.get("input_ids")
    if stop is not None and stop.any():
        return None
    if prompts is None:
        raise RequestFailed("input_ids is missing: it must contain the tokens of the prompt.")
    refuse_batch(prompts)
    refuse_unsupported(inputs)
    request = _request(inputs, prompts[0].tolist(), info)
    if request.streaming and not decoupled:
        raise RequestFailed(
            "streaming=true needs a decoupled model. Leave it out, or serve with repository.decoupled: true."
        )
    return request


def refuse_batch(prompts: Array) -> None:
    """Raise RequestFailed unless there is one prompt."""
    if len(prompts) > 1:
        raise RequestFailed(f"The request contains {len(prompts)} prompts. Send one prompt per request.")


def refuse_unsupported(inputs: Inputs) -> None:
    """Raise RequestFailed with the name of an input that requests an unsupported feature, in any model."""
    for name, array in inputs.items():
        if name not in _WHAT or not array.size:
            continue
        values = array.reshape(-1).tolist()
        if name in _ALWAYS_ASKS or any(value not in (0, b"", _NOTHING.get(name, 0)) for value in values):
            raise RequestFailed(
                f"{name} asks for {_WHAT[name]}, which the reference backend does not have. "
                "Leave this input out."
            )


def _number(
    inputs: Inputs, name: str, default: _Number, *, least: float = 0, most: float = math.inf
) -> _Number:
    """Return a number, or the default if it was not sent. Raises RequestFailed if it is out of bounds."""
    array = inputs.get(name)
    value: _Number = default if array is None or not array.size else array.reshape(-1)[0].item()
    # Messages show a value as the client wrote it: 0.7 as a 32-bit float is 0.699999988.
    shown = value if isinstance(value, int) else f"{value:.6g}"
    if not math.isfinite(value):
        raise RequestFailed(f"{name} is {shown}; it must be a finite number.")
    if not least <= value <= most:
        bounds = f"at least {least:g}" if most == math.inf else f"{least:g} to {most}"
        raise RequestFailed(f"{name} is {shown}; it must be {bounds}.")
    return value


def _request(inputs: Inputs, prompt: list[int], info: EngineInfo) -> GenerationRequest:
    if "request_output_len" not in inputs:
        raise RequestFailed("request_output_len (max_tokens) is missing.")
    new = _number(inputs, "request_output_len", 0, least=1)
    length = _number(inputs, "input_lengths", len(prompt), least=-math.inf)
    if not 0 <= length <= len(prompt):
        raise RequestFailed(f"input_lengths is {length}, but input_ids contains {len(prompt)} tokens.")
    if length == 0:
        raise RequestFailed("The prompt is empty: input_ids must contain at least one token.")
    if length > info.max_input_len:
        raise RequestFailed(
            f"The prompt has {length} tokens; this engine was built for max_input_len {info.max_input_len}."
        )
    if length + new > info.max_seq_len:
        raise RequestFailed(
            f"The prompt's {length} tokens and the {new} asked for make {length + new}; "
            f"this engine was built for max_seq_len {info.max_seq_len}."
        )
    outside = next((token for token in prompt[:length] if not 0 <= token < info.vocab_size), None)
    if outside is not None:
        raise RequestFailed(
            f"input_ids contains {outside}; this engine's vocabulary is 0 to {info.vocab_size - 1}."
        )
    # Without top_k and top_p, or with zeros, decoding is greedy; if only one is set, the other sets no limit.
    # Decoding is also greedy at a temperature of 0: TensorRT-LLM divides the logits by the temperature +
    # 1e-6.
    top_k, top_p = _number(inputs, "runtime_top_k", 0), _number(inputs, "runtime_top_p", 0.0, most=1)
    temperature = _number(inputs, "temperature", 1.0)
    repetition = _number(inputs, "repetition_penalty", 1.0)
    if repetition == 0:
        raise RequestFailed("repetition_penalty is 0; it must be above 0.")
    return GenerationRequest(
        prompt=tuple(prompt[:length]),
        max_new_tokens=new,
        end_id=_number(inputs, "end_id", NO_END, least=NO_END, most=info.vocab_size - 1),
        temperature=temperature or 1.0,
        top_k=1 if temperature == 0 or (top_k == 0 and top_p == 0) else top_k,
        top_p=top_p or 1.0,
        repetition_penalty=repetition,
        min_new_tokens=_number(inputs, "min_length", 0),
        seed=_number(inputs, "random_seed", 0, least=-math.inf) % _SEEDS,
        stop_words=_stop_words(inputs),
        return_log_probs=bool(_number(inputs, "return_log_probs", 0)),
        exclude_input=bool(_number(inputs, "exclude_input_in_output", 0)),
        streaming=bool(_number(inputs, "streaming", 0)),
    )


def _stop_words(inputs: Inputs) -> tuple[tuple[int, ...], ...]:
    """Read stop words in upstream's layout: a row of all tokens, and a row of the ends, then -1."""
    array = inputs.get("stop_words_list")
    if array is None or not array.size:
        return ()
    tokens, ends = array[0].tolist()
    words = (tuple(tokens[start:end]) for start, end in pairwise([0, *(end for end in ends if end > 0)]))
    return tuple(word for word in words if word)
