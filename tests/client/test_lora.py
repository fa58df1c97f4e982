"""LoRA adapters from folders: what is sent, and a sentence for each mistake."""

from __future__ import annotations

from collections.abc import Callable
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


def test_an_adapter_has_its_weights_and_their_configuration(tmp_path: Path) -> None:
    adapter = read_adapter(save(tmp_path), 7)
    assert (adapter.task_id, adapter.rank) == (7, 4)
    assert [str(array.dtype) for array in (adapter.weights, adapter.config)] == ["float16", "int32"]
    assert np.array_equal(adapter.weights, WEIGHTS) and np.array_equal(adapter.config, CONFIG)


def test_old_releases_call_the_configuration_keys(tmp_path: Path) -> None:
    assert np.array_equal(read_adapter(save(tmp_path, name="lora_keys"), 1).config, CONFIG)


def test_of_two_configurations_the_new_name_counts(tmp_path: Path) -> None:
    save(tmp_path, config=CONFIG + 1, name="lora_keys")
    assert np.array_equal(read_adapter(save(tmp_path), 1).config, CONFIG)


def test_a_batch_dimension_may_be_missing(tmp_path: Path) -> None:
    adapter = read_adapter(save(tmp_path, WEIGHTS[0], CONFIG[0]), 1)
    assert adapter.weights.shape == (1, 2, 4) and adapter.config.shape == (1, 2, 3)


def test_the_column_for_dora_is_left_out_where_it_says_no(tmp_path: Path) -> None:
    wide = np.concatenate([CONFIG, np.zeros((1, 2, 1), np.int32)], axis=2)
    assert np.array_equal(read_adapter(save(tmp_path, config=wide), 1).config, CONFIG)


def cut_short(folder: Path) -> None:
    path = save(folder) / "model.lora_weights.npy"
    path.write_bytes(path.read_bytes()[:-3])


def hugging_face(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")


def without_weights(folder: Path) -> None:
    (save(folder) / "model.lora_weights.npy").unlink()


def without_config(folder: Path) -> None:
    (save(folder) / "model.lora_config.npy").unlink()


def saving(**arrays: Any) -> Callable[[Path], Path]:
    return lambda folder: save(folder, **arrays)


MISTAKES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no folder": (lambda _: None, "is not a folder", "model.lora_weights.npy"),
    "not converted": (hugging_face, "has not been converted", "hf_lora_convert.py"),
    "no weights": (without_weights, "it has no model.lora_weights.npy", "hf_lora_convert.py"),
    "no configuration": (without_config, "neither model.lora_config.npy nor model.lora_keys.npy", "hf_lora"),
    "cut short": (cut_short, "is cut off", "hf_lora_convert.py"),
    "objects": (saving(weights=np.array([{}], dtype=object)), "is not a NumPy file", "hf_lora_convert.py"),
    "float32": (saving(weights=WEIGHTS.astype(np.float32)), "type float32", "--storage-type float16"),
    "bfloat16": (saving(weights=WEIGHTS.view("V2")), "type bfloat16", "--storage-type float16"),
    "int64": (saving(config=CONFIG.astype(np.int64)), "type int64", "hf_lora_convert.py"),
    "one dimension": (saving(weights=WEIGHTS.reshape(-1)), "shape [8]; it must be [1, modules, values]", ""),
    "batch of two": (saving(config=np.repeat(CONFIG, 2, 0)), "[2, 2, 3]; it must be [1, modules, 3]", ""),
    "no modules": (saving(weights=WEIGHTS[:, :0]), "has shape [1, 0, 4]", ""),
    "two columns": (saving(config=CONFIG[..., :2].copy()), "has 2 values for each module", ""),
    "DoRA": (saving(config=np.ones((1, 2, 4), np.int32)), "DoRA adapter", "without DoRA"),
    "other adapter": (saving(config=CONFIG[:, :1]), "holds 2 modules and model.lora_config.npy 1", ""),
    "no rank": (saving(config=CONFIG * np.array([1, 1, 0], np.int32)), "a rank below 1", ""),
    "not finite": (saving(weights=np.full_like(WEIGHTS, np.inf)), "a NaN or an infinite value", "float16"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_has_its_own_sentence_and_hint(mistake: str, tmp_path: Path) -> None:
    make, sentence, hint = MISTAKES[mistake]
    folder = tmp_path / "adapter"
    make(folder)
    with pytest.raises(RequestFailed) as raised:
        read_adapter(folder, 1)
    assert str(folder) in raised.value.message and sentence in raised.value.message
    assert raised.value.hint and hint in raised.value.hint


@pytest.mark.parametrize("task_id", [-1, 2**64])
def test_a_number_that_the_input_cannot_hold_is_refused(task_id: int, tmp_path: Path) -> None:
    with pytest.raises(RequestFailed, match=f"{task_id} is not a number of a LoRA adapter"):
        read_adapter(save(tmp_path), task_id)


@pytest.mark.parametrize(
    ("error", "is_unknown"),
    [
        ("Executor failed process requestId 3 due to the following error: Encountered an error when fetching"
         " new request: LoRA task 1 not found in cache. Please send LoRA weights with request", True),
        ("[TensorRT-LLM][ERROR] Assertion failed: LoRA task 0 not found in cache. Please send LoRA weights"
         " with request (/home/jenkins/agent/workspace/LLM/main/L0_PostMerge/llm/cpp/t", True),
        ("Cache is full. There are no done tasks to evict", False),
        ("This engine was built without LoRA: leave lora_task_id out.", False),
    ],
)  # fmt: skip
def test_an_error_that_means_send_the_weights_again(error: str, is_unknown: bool) -> None:
    assert is_unknown_adapter(error) is is_unknown
