"""The text model's tensors (``ensemble``, ``tensorrt_llm_bls``), named as upstream names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXT_OUTPUT = "text_output"
LENGTH_OUTPUT = "sequence_length"
"""Output tokens of each sequence, for models that declare it."""


def text_inputs(prompt: str, max_tokens: int) -> dict[str, NDArray[Any]]:
    """Inputs of one question, batch of one.

    ``bad_words`` and ``stop_words`` are always sent, empty: old releases of
    the ensemble do not declare them optional.
    """
    empty = np.array([[b""]], dtype=np.object_)
    return {
        "text_input": np.array([[prompt.encode("utf-8", errors="replace")]], dtype=np.object_),
        "max_tokens": np.array([[max_tokens]], dtype=np.int32),
        "bad_words": empty,
        "stop_words": empty,
    }


def first_text(output: NDArray[Any]) -> str:
    """The first string of a BYTES tensor; bytes that are no UTF-8 are replaced."""
    value = output.reshape(-1)[0]
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
