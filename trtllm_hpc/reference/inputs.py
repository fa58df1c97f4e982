"""The inputs of the model ``tensorrt_llm``: their names, reading those of one prompt, and what is refused.

Triton has checked types and shapes by ``config.pbtxt`` before a request gets here, and that every input has a
row for each prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


def padded(rows: Sequence[Sequence[float]], filler: float) -> list[list[float]]:
    """Make all rows as long as the longest, with ``filler`` at their ends."""
    longest = max(map(len, rows))
    return [[*row, *[filler] * (longest - len(row))] for row in rows]


def rows(inputs: Inputs) -> list[Row]:
    """Split the tensors of a request into one row for each prompt. Raises RequestFailed without a prompt."""
    prompts = inputs.get("input_ids")
    if prompts is None:
        raise RequestFailed("input_ids is missing: it must hold the tokens of the prompt.")
    return [Row({name: array[index] for name, array in inputs.items()}) for index in range(len(prompts))]


# What is not supported --------------------------------------------------------------------

_ENCODER = "models with an encoder"
_DRAFT = "speculative decoding"
_IMAGES = "images and videos"
_PROMPT_TUNING = "prompt tuning"

_TOKEN_INPUTS = {
    "encoder_input_features": _ENCODER,
    "encoder_output_lengths": _ENCODER,
    "cross_attention_mask": _ENCODER,
    "skip_cross_attn_blocks": _ENCODER,
    "draft_input_ids": _DRAFT,
    "draft_logits": _DRAFT,
    "prompt_embedding_table": _PROMPT_TUNING,
    "context_phase_params": "disaggregated serving",
    "return_kv_cache_reuse_stats": "statistics of a reused KV cache",
}
"""Inputs of ``tensorrt_llm``. Those that only qualify one of them ask for nothing by themselves."""

_TENSORS = frozenset({"encoder_input_features", "draft_input_ids", "draft_logits", "prompt_embedding_table"})
"""In these tensors zero is a value. In all others zero means "off"."""

_TEXT_INPUTS = {
    "decoder_text_input": ("DECODER_QUERY", _ENCODER),
    "image_input": ("", _IMAGES),
    "image_bytes_input": ("IMAGE_BYTES", _IMAGES),
    "image_url_input": ("IMAGE_URL", _IMAGES),
    "video_bytes_input": ("VIDEO_BYTES", _IMAGES),
    "num_draft_tokens": ("", _DRAFT),
}
"""Inputs of the models that take text: the name in ``preprocessing``, if any, and what they ask for."""

KNOWN_INPUTS = frozenset(
    {
        *(*_TOKEN_INPUTS, *_TEXT_INPUTS, *TEXT_NAMES, *_OTHER_NAMES),
        *("input_ids", "input_lengths", "text_input", "num_return_sequences", "beam_width", "stop"),
        *("prompt_table_extra_id", "prompt_table_extra_ids", "prompt_vocab_size"),
        *("decoder_input_ids", "decoder_input_lengths", "draft_acceptance_threshold", "use_draft_logits"),
        *("bad_words", "bad_words_list", "stop_words", "stop_words_list"),
        *("embedding_bias", "embedding_bias_weights", "embedding_bias_words"),
        *("lora_config", "lora_task_id", "lora_weights"),
        *("return_context_logits", "return_generation_logits", "return_log_probs", "exclude_input_in_output"),
        *("beam_search_diversity_rate", "early_stopping", "end_id", "pad_id", "min_length", "random_seed"),
        *("temperature", "frequency_penalty", "presence_penalty", "repetition_penalty"),
        *("runtime_top_p_decay", "runtime_top_p_min", "runtime_top_p_reset_ids"),
    }
)
"""Names of all inputs of ``tensorrt_llm`` and of the models that take text."""


def refuse_unsupported(row: Row, *, beam_width: int) -> None:
    """Raise RequestFailed with the name of an input of ``tensorrt_llm`` that asks for something in vain."""
    for name, what in _TOKEN_INPUTS.items():
        array = row.array(name)
        if array is not None and (name in _TENSORS or array.any()):
            raise _refusal(name, what)
    # Upstream's preprocessing always makes one token, which a model without an encoder does not read.
    decoder = row.array("decoder_input_ids")
    if decoder is not None and decoder.size > 1:
        raise _refusal("decoder_input_ids", _ENCODER)
    decay = row.number("runtime_top_p_decay", 1.0)
    if decay != 1:
        raise _refusal("runtime_top_p_decay", "a top p that changes during a request")
    if beam_width > 1 and row.number("beam_search_diversity_rate", 0.0) != 0:
        raise _refusal("beam_search_diversity_rate", "a beam search with a diversity rate")
    if beam_width > 1 and "early_stopping" in row and not row.flag("early_stopping"):
        raise _refusal("early_stopping=false", "a beam search that goes on after enough beams have ended")


def refuse_unsupported_text(arrays: Mapping[str, Array | None]) -> None:
    """Refuse what the inputs of a model that takes text ask for in vain, by its own names or preprocessing's.

    Empty texts and zeros ask for nothing. Raises RequestFailed with the input's name.
    """
    for name, (inner, what) in _TEXT_INPUTS.items():
        for array in (arrays.get(name), arrays.get(inner)):
            if array is not None and array.any():
                raise _refusal(f"{name} ({inner})" if inner else name, what)


def _refusal(name: str, what: str) -> RequestFailed:
    return RequestFailed(f"{name} asks for {what}, which the reference backend does not have. Leave it out.")
