"""The text model's tensors (``ensemble``, ``tensorrt_llm_bls``), named as upstream names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXT_OUTPUT = "text_output"
LENGTH_OUTPUT = "sequence_length"
"""Output tokens of each sequence, for models that declare it."""
LLM_API_LENGTH = "sampling_param_max_tokens"
"""What the LLM API's model calls ``max_tokens`` (upstream's ``all_models/llmapi``, 0.19 on)."""


@dataclass(frozen=True)
class TextModel:
    """What a text model takes."""

    takes_sampling_params: bool = False
    """Whether it is the LLM API's."""
    batched: bool = True
    """Whether its inputs have a batch dimension."""


ENSEMBLE = TextModel()
"""Upstream's ``ensemble`` and ``tensorrt_llm_bls``, of any release."""


def text_inputs(prompt: str, max_tokens: int, model: TextModel = ENSEMBLE) -> dict[str, NDArray[Any]]:
    """Inputs of one question, batch of one.

    ``bad_words`` and ``stop_words`` are always sent to upstream's ensemble,
    empty: its old releases do not declare them optional.
    """
    shape = (1, 1) if model.batched else (1,)
    text = np.array([prompt.encode("utf-8", errors="replace")], dtype=np.object_).reshape(shape)
    length = np.full(shape, max_tokens, dtype=np.int32)
    if model.takes_sampling_params:
        return {"text_input": text, LLM_API_LENGTH: length}
    empty = np.array([b""], dtype=np.object_).reshape(shape)
    return {"text_input": text, "max_tokens": length, "bad_words": empty, "stop_words": empty}


def logits_inputs(names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Inputs that ask upstream's text models for ``context_logits`` or ``generation_logits``."""
    return {f"return_{name}": np.array([[True]]) for name in names}


def first_text(output: NDArray[Any]) -> str:
    """The first string of a BYTES tensor; bytes that are no UTF-8 are replaced."""
    value = output.reshape(-1)[0]
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
