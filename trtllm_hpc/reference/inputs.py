"""The input tensors of the model ``tensorrt_llm``: names, types, shapes, and reading one row of them.

The table follows ``all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt``
of NVIDIA's tensorrtllm_backend v0.16.0, input by input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtllm_hpc.errors import RequestFailed

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]

ANY = -1
"""A dimension of any size."""

_KINDS = {"INT32": "iu", "UINT64": "iu", "UINT8": "iu", "FP16": "f", "FP32": "f", "BOOL": "b"}
"""NumPy's kinds of numbers that are accepted for each Triton type."""


@dataclass(frozen=True)
class Spec:
    """Type and shape of one input, without the batch dimension."""

    type: str
    dims: tuple[int, ...] = ()


INPUTS: Mapping[str, Spec] = {
    "input_ids": Spec("INT32", (ANY,)),
    "encoder_input_features": Spec("FP16", (ANY, ANY)),
    "encoder_output_lengths": Spec("INT32"),
    "input_lengths": Spec("INT32"),
    "request_output_len": Spec("INT32"),
    "num_return_sequences": Spec("INT32"),
    "draft_input_ids": Spec("INT32", (ANY,)),
    "decoder_input_ids": Spec("INT32", (ANY,)),
    "decoder_input_lengths": Spec("INT32"),
    "draft_logits": Spec("FP32", (ANY, ANY)),
    "draft_acceptance_threshold": Spec("FP32"),
    "end_id": Spec("INT32"),
    "pad_id": Spec("INT32"),
    "stop_words_list": Spec("INT32", (2, ANY)),
    "bad_words_list": Spec("INT32", (2, ANY)),
    "embedding_bias": Spec("FP32", (ANY,)),
    "beam_width": Spec("INT32"),
    "temperature": Spec("FP32"),
    "runtime_top_k": Spec("INT32"),
    "runtime_top_p": Spec("FP32"),
    "runtime_top_p_min": Spec("FP32"),
    "runtime_top_p_decay": Spec("FP32"),
    "runtime_top_p_reset_ids": Spec("INT32"),
    "len_penalty": Spec("FP32"),
    "early_stopping": Spec("BOOL"),
    "repetition_penalty": Spec("FP32"),
    "min_length": Spec("INT32"),
    "beam_search_diversity_rate": Spec("FP32"),
    "presence_penalty": Spec("FP32"),
    "frequency_penalty": Spec("FP32"),
    "random_seed": Spec("UINT64"),
    "return_log_probs": Spec("BOOL"),
    "return_context_logits": Spec("BOOL"),
    "return_generation_logits": Spec("BOOL"),
    "return_kv_cache_reuse_stats": Spec("BOOL"),
    "exclude_input_in_output": Spec("BOOL"),
    "stop": Spec("BOOL"),
    "streaming": Spec("BOOL"),
    "prompt_embedding_table": Spec("FP16", (ANY, ANY)),
    "prompt_table_extra_ids": Spec("UINT64", (ANY,)),
    "prompt_vocab_size": Spec("INT32"),
    "cross_attention_mask": Spec("BOOL", (ANY, ANY)),
    "lora_task_id": Spec("UINT64"),
    "lora_weights": Spec("FP16", (ANY, ANY)),
    "lora_config": Spec("INT32", (ANY, 3)),
    "context_phase_params": Spec("UINT8", (ANY,)),
    "skip_cross_attn_blocks": Spec("BOOL", (1,)),
}

TEXT_INPUTS = frozenset(
    {
        *("text_input", "decoder_text_input", "max_tokens", "bad_words", "stop_words", "top_k", "top_p"),
        *("length_penalty", "stream", "embedding_bias_words", "embedding_bias_weights"),
        *("prompt_table_extra_id", "image_input", "image_bytes_input", "image_url_input"),
        *("video_bytes_input", "num_draft_tokens", "use_draft_logits"),
    }
)
"""Inputs of the models that take text which ``tensorrt_llm`` does not have, or names otherwise."""


class Row:
    """The inputs of one prompt of a request; an input that was sent once applies to all prompts."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def array(self, name: str) -> Array | None:
        """A tensor without its batch dimension; ``None`` if it was not sent or is empty."""
        array = self._arrays.get(name)
        return None if array is None or array.size == 0 else array

    def integer(self, name: str, default: int = 0) -> int:
        """An integer input."""
        array = self.array(name)
        return default if array is None else int(array)

    def flag(self, name: str) -> bool:
        """A boolean input, false if it was not sent."""
        return bool(self.integer(name))

    def number(self, name: str, default: float, *, above: float | None = None) -> float:
        """A finite number. Raises RequestFailed if it is infinite, NaN, or not above ``above``."""
        array = self.array(name)
        value = default if array is None else float(array)
        if not math.isfinite(value):
            raise RequestFailed(f"{name} is {value}; it must be a finite number.")
        if above is not None and value <= above:
            raise RequestFailed(f"{name} is {shown(value)}; it must be above {above:g}.")
        return value


def shown(value: Any) -> str:
    """A value as the client wrote it: 0.7 as a 32-bit float is 0.699999988."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def rows(inputs: Inputs) -> list[Row]:
    """Split the tensors of one Triton request into one row for each prompt.

    Raises RequestFailed if a tensor is unknown, or its type or shape is wrong.
    """
    prompts = inputs.get("input_ids")
    if prompts is None:
        raise RequestFailed("input_ids is missing: it must hold the tokens of the prompt.")
    if prompts.ndim != 2 or prompts.shape[0] == 0:
        raise RequestFailed(f"input_ids has shape {list(prompts.shape)}; it must be [prompts, tokens].")
    count = prompts.shape[0]
    split = {name: _split(name, array, count) for name, array in inputs.items()}
    return [Row({name: arrays[index] for name, arrays in split.items()}) for index in range(count)]


def _split(name: str, array: Array, count: int) -> list[Array]:
    """The rows of one tensor; one that was sent once is repeated."""
    spec = INPUTS.get(name)
    if spec is None:
        raise RequestFailed(
            f"The reference backend has no input {name}. Leave it out; its inputs are: {', '.join(INPUTS)}."
        )
    if array.dtype.kind not in _KINDS[spec.type]:
        raise RequestFailed(f"{name} has type {array.dtype}; it must be {spec.type}.")
    given = array
    if not spec.dims:
        # Triton removes a dimension of 1 ("reshape"), but a direct caller may still have it.
        array = array.reshape(array.shape[:1] if array.ndim == 2 and array.shape[1] == 1 else array.shape)
        array = array.reshape(1) if array.ndim == 0 else array
    if not _fits(array.shape, count, spec.dims):
        wanted = ", ".join(["prompts", *("any" if size == ANY else str(size) for size in spec.dims)])
        raise RequestFailed(
            f"{name} has shape {list(given.shape)}; it must be [{wanted}], with {count} or 1 for prompts."
        )
    return [array[index if array.shape[0] == count else 0] for index in range(count)]


def _fits(shape: tuple[int, ...], count: int, dims: tuple[int, ...]) -> bool:
    return (
        len(shape) == 1 + len(dims)
        and shape[0] in (1, count)
        and all(wanted in (ANY, size) for wanted, size in zip(dims, shape[1:], strict=True))
    )
