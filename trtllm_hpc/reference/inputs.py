"""The inputs of the model ``tensorrt_llm``: their names, reading those of one prompt, and what is refused.

Triton has checked types and shapes by ``config.pbtxt`` before a request gets here, and that every input has a
row for each prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from trtllm_hpc.errors import RequestFailed

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

    def integer(self, name: str, default: int = 0, *, least: int = -(2**63), most: int = 2**64) -> int:
        """An integer input. Raises RequestFailed if it is below ``least`` or above ``most``."""
        array = self.array(name)
        return _within(name, default if array is None else int(array.item()), least, most)

    def number(self, name: str, default: float, *, least: float = -math.inf, most: float = math.inf) -> float:
        """A finite number. Raises RequestFailed if it is not finite, below ``least`` or above ``most``."""
        array = self.array(name)
        value = default if array is None else float(array.item())
        if not math.isfinite(value):
            raise RequestFailed(f"{named(name)} is {value}; it must be a finite number.")
        return _within(name, value, least, most)


def named(name: str) -> str:
    """An input's name, with the one that the models have which take text."""
    return f"{name} ({_OTHER_NAMES[name]})" if name in _OTHER_NAMES else name


def _within(name: str, value: _Number, least: float, most: float) -> _Number:
    if not least <= value <= most:
        # A value as the client wrote it: 0.7 as a 32-bit float is 0.699999988.
        shown = value if isinstance(value, int) else f"{value:.6g}"
        bounds = f"at least {least}" if most >= 2**64 else f"{least} to {most}"
        raise RequestFailed(f"{named(name)} is {shown}; it must be {bounds}.")
    return value


# What is not supported --------------------------------------------------------------------

_ENCODER = "models with an encoder"
_DRAFT = "speculative decoding"
_IMAGES = "images and videos"
_LORA = "LoRA adapters"
_BIAS = "a bias of tokens"
_BEAMS = "beam search"

_TENSORS = {
    "encoder_input_features": _ENCODER,
    "draft_input_ids": _DRAFT,
    "draft_logits": _DRAFT,
    "prompt_embedding_table": "prompt tuning",
    "lora_weights": _LORA,
    "lora_config": _LORA,
    "lora_task_id": _LORA,
}
"""Inputs of ``tensorrt_llm`` in which zero is a value."""

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
    "beam_width": (1, _BEAMS),
}
"""Inputs with the value that asks for nothing. Those that only qualify one of them ask for nothing either."""

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
"""Inputs of the models that take text: the name in ``preprocessing``, if any, and what they ask for."""

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


def refuse_unsupported(row: Row) -> None:
    """Raise RequestFailed with the name of an input of ``tensorrt_llm`` that asks for something in vain."""
    for name, what in _TENSORS.items():
        if row.array(name) is not None:
            raise refusal(name, what)
    for name, (nothing, what) in _TOKEN_INPUTS.items():
        array = row.array(name)
        if array is not None and (array != nothing).any():
            raise refusal(name, what)
    # Upstream's preprocessing always makes one token, which a model without an encoder does not read.
    decoder = row.array("decoder_input_ids")
    if decoder is not None and decoder.size > 1:
        raise refusal("decoder_input_ids", _ENCODER)
    bad_words = row.array("bad_words_list")
    # The second row holds the ends of the words, and then -1.
    if bad_words is not None and (bad_words[1] > 0).any():
        raise refusal("bad_words_list", "bad words")


def refuse_unsupported_text(arrays: Mapping[str, Array | None]) -> None:
    """Refuse what the inputs of a model that takes text ask for in vain, by its own names or preprocessing's.

    Empty texts and zeros ask for nothing. Raises RequestFailed with the input's name.
    """
    for name, (inner, what) in _TEXT_INPUTS.items():
        for array in (arrays.get(name), arrays.get(inner)):
            if array is not None and array.any():
                raise refusal(f"{name} ({inner})" if inner else name, what)


def refusal(name: str, what: str) -> RequestFailed:
    """Why a request is refused that asks for something in vain."""
    return RequestFailed(f"{name} asks for {what}, which the reference backend does not have. Leave it out.")
