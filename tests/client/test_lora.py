"""LoRA adapters from folders: what is sent, and a sentence for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtllm_hpc.client.lora import is_unknown_adapter, read_adapter
from trtllm_hpc.errors import RequestFailed

WEIGHTS = np.arange(8, dtype=np.float16).reshape(1, 2, 4)
CONFIG = np.array([[[1, 0, 2], [3, 1, 4]]], dtype=np.int32)


def save(folder: Path, weights: Any = WEIGHTS, config: Any = CONFIG, name: str = "lora_config") -> Path:
    folder.mkdir(exist_ok=True)
    np.save(folder / "model.lora_weights.npy", weights)
    np.save(folder / f"model.{name}.npy", config)
    return folder


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"name": "lora_keys"},
        {"weights": WEIGHTS[0], "config": CONFIG[0]},
        {"config": np.concatenate([CONFIG, np.zeros((1, 2, 1), np.int32)], axis=2)},
    ],
    ids=["converted", "by an old release", "without a batch", "with a column for DoRA"],
)
def test_an_adapter_has_its_weights_and_their_configuration(tmp_path: Path, saved: dict[str, Any]) -> None:
    adapter = read_adapter(save(tmp_path, **saved), 7)
    assert (adapter.task_id, adapter.rank) == (7, 4)
    assert [str(array.dtype) for array in (adapter.weights, adapter.config)] == ["float16", "int32"]
    assert np.array_equal(adapter.weights, WEIGHTS) and np.array_equal(adapter.config, CONFIG)


@pytest.mark.parametrize(
    ("saved", "sentence"),
    [
        ({"weights": np.array([{}], dtype=object)}, "cannot be read as a NumPy file"),
        ({"weights": WEIGHTS.astype(np.float32)}, "has float32"),
        ({"weights": WEIGHTS.view("V2")}, "it must have float16"),
        ({"weights": WEIGHTS.reshape(-1)}, r"shape \[8\]"),
        ({"config": np.repeat(CONFIG, 2, 0)}, r"shape \[2, 2, 3\]"),
        ({"config": np.ones((1, 2, 4), np.int32)}, "no DoRA scales"),
        ({"config": CONFIG[:, :1]}, "weights have 2 modules, the configuration 1"),
        ({"config": CONFIG * np.array([1, 1, 0], np.int32)}, "a rank below 1"),
        ({"weights": np.full_like(WEIGHTS, np.inf)}, "a NaN or infinite"),
    ],
)
def test_what_the_server_would_crash_of_is_refused(
    tmp_path: Path, saved: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RequestFailed, match=sentence) as caught:
        read_adapter(save(tmp_path, **saved), 1)
    assert caught.value.hint and "hf_lora_convert.py" in caught.value.hint


def test_a_folder_that_was_not_converted_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestFailed, match=f"{tmp_path} is not a converted LoRA adapter"):
        read_adapter(tmp_path)


def test_the_error_that_means_send_the_weights_again() -> None:
    error = "Encountered an error when fetching new request: LoRA task 1 not found in cache. Please send LoRA"
    assert is_unknown_adapter(error)
    assert not is_unknown_adapter("Cache is full. There are no done tasks to evict")
