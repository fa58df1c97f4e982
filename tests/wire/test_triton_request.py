"""Values as tensors of the types in a model's configuration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtllm_hpc.errors import InvalidRequest
from trtllm_hpc.wire.served_model import ServedModel
from trtllm_hpc.wire.triton import tensors

MODEL = ServedModel(
    "ensemble",
    {
        **{"max_tokens": "TYPE_INT32", "random_seed": "TYPE_UINT64", "temperature": "TYPE_FP32"},
        **{"stop_words": "TYPE_STRING", "stream": "TYPE_BOOL", "input_ids": "TYPE_INT32"},
    },
)


def test_values_get_the_types_and_the_shape_of_the_model() -> None:
    values = {"max_tokens": 5, "stop_words": ["a", "ü"], "stream": True, "input_ids": [7, 8]}
    found = tensors(MODEL, values)
    assert found["max_tokens"].tolist() == [[5]] and found["max_tokens"].dtype == np.int32
    assert found["stop_words"].tolist() == [[b"a", "ü".encode()]]
    assert found["stream"].tolist() == [[True]] and found["input_ids"].tolist() == [[7, 8]]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("max_tokens", 2**32 + 3, r"4294967299 does not fit .* int32"),
        ("max_tokens", 2.5, r"2.5 does not fit .* int32"),
        ("max_tokens", True, r"True does not fit .* int32"),
        ("random_seed", -1, r"-1 does not fit .* uint64"),
        ("temperature", 1e39, r"1e\+39 does not fit .* float32"),
        ("stop_words", 7, r"7 does not fit .* text"),
        ("stream", 1, r"1 does not fit .* bool"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        tensors(MODEL, {name: value})
