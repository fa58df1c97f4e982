"""The inputs of the model ``tensorrt_llm``: their names, and reading those of one prompt.

Triton has checked types and shapes by ``config.pbtxt`` before a request gets here, and that every input has a
row for each prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from trtllm_hpc.errors import RequestFailed

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]

TEXT_NAMES = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
    "max_tokens": "request_output_len",
}
"""Inputs of the models that take text, by name, to the same of ``tensorrt_llm`` that have another name."""

_OTHER_NAMES = {name: text for text, name in TEXT_NAMES.items()}

KNOWN_INPUTS = frozenset(
    {
        *("input_ids", "input_lengths", "max_tokens", "num_return_sequences", "prompt_embedding_table"),
        *("prompt_table_extra_id", "prompt_table_extra_ids", "prompt_vocab_size", "request_output_len"),
        *("text_input",),
        *("context_phase_params", "cross_attention_mask", "decoder_input_ids", "decoder_input_lengths"),
        *("decoder_text_input", "encoder_input_features", "encoder_output_lengths"),
        *("skip_cross_attn_blocks",),
        *("draft_acceptance_threshold", "draft_input_ids", "draft_logits", "num_draft_tokens"),
        *("use_draft_logits",),
        *("image_bytes_input", "image_input", "image_url_input", "video_bytes_input"),
        *("bad_words", "bad_words_list", "embedding_bias", "embedding_bias_weights"),
        *("embedding_bias_words", "stop_words", "stop_words_list"),
        *("lora_config", "lora_task_id", "lora_weights"),
        *("return_context_logits", "return_generation_logits", "return_kv_cache_reuse_stats"),
        *("return_log_probs",),
        *("beam_search_diversity_rate", "beam_width", "early_stopping", "end_id"),
        *("exclude_input_in_output", "frequency_penalty", "len_penalty", "length_penalty", "min_length"),
        *("pad_id", "presence_penalty", "random_seed", "repetition_penalty", "runtime_top_k"),
        *("runtime_top_p", "runtime_top_p_decay", "runtime_top_p_min", "runtime_top_p_reset_ids", "stop"),
        *("stream", "streaming", "temperature", "top_k", "top_p"),
    }
)
"""Names of all inputs of ``tensorrt_llm`` and of the models that take text."""


class Row:
    """The inputs of one prompt of a request."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def array(self, name: str) -> Array | None:
        """A tensor without its batch dimension; ``None`` if it was not sent or is empty."""
        array = self._arrays.get(name)
        return None if array is None or array.size == 0 else array

    def flag(self, name: str) -> bool:
        """A boolean input, false if it was not sent."""
        return bool(self.integer(name))

    def integer(
        self, name: str, default: int = 0, *, least: int | None = None, most: int | None = None
    ) -> int:
        """An integer input. Raises RequestFailed if it is below ``least`` or above ``most``."""
        array = self.array(name)
        value = default if array is None else int(array.item())
        _check_range(name, value, least, most)
        return value

    def number(
        self, name: str, default: float, *, least: float | None = None, most: float | None = None
    ) -> float:
        """A finite number. Raises RequestFailed if it is not finite, below ``least`` or above ``most``."""
        array = self.array(name)
        value = default if array is None else float(array.item())
        if not math.isfinite(value):
            raise RequestFailed(f"{named(name)} is {value}; it must be a finite number.")
        _check_range(name, value, least, most)
        return value


def named(name: str) -> str:
    """An input's name, with the one that the models have which take text."""
    return f"{name} ({_OTHER_NAMES[name]})" if name in _OTHER_NAMES else name


def shown(value: float) -> str:
    """A value as the client wrote it: 0.7 as a 32-bit float is 0.699999988."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _check_range(name: str, value: float, least: float | None, most: float | None) -> None:
    if (least is None or value >= least) and (most is None or value <= most):
        return
    bounds = f"at least {least}" if most is None else f"{least} to {most}"
    raise RequestFailed(f"{named(name)} is {shown(value)}; it must be {bounds}.")


def rows(inputs: Inputs) -> list[Row]:
    """Split the tensors of one Triton request into one row for each prompt.

    Raises RequestFailed without a prompt.
    """
    prompts = inputs.get("input_ids")
    if prompts is None:
        raise RequestFailed("input_ids is missing: it must hold the tokens of the prompt.")
    return [Row({name: array[index] for name, array in inputs.items()}) for index in range(len(prompts))]
