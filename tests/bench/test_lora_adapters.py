"""Where the adapters of a benchmark are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trtllm_hpc.bench.lora_adapters import LoraAdapters
from trtllm_hpc.config.benchmark import Workload
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.paths import RunPaths


def save(folder: Path, value: int) -> Path:
    folder.mkdir(parents=True)
    np.save(folder / "model.lora_weights.npy", np.full((1, 1, 4), value, np.float16))
    np.save(folder / "model.lora_config.npy", np.array([[[1, 0, 2]]], np.int32))
    return folder


def test_a_given_folder_and_one_that_the_build_has_converted(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run-1")
    # As the engine cache leaves it: a link of the step's name to a folder of all adapters.
    save(tmp_path / "cache" / "luotuo", 1)
    paths.folder.mkdir()
    (paths.folder / "lora").symlink_to(tmp_path / "cache")
    lora = [{"adapter": "luotuo"}, {"directory": str(save(tmp_path / "given", 2)), "task_id": 9}]
    found = LoraAdapters.read(Workload.model_validate({"lora": lora}), paths)
    values = {task_id: np.full((1, 1, 4), value, np.float16).tobytes() for task_id, value in ((1, 1), (9, 2))}
    assert list(found.weights) == list(values)
    assert all(values[task_id] in weights for task_id, weights in found.weights.items())


def test_one_that_was_not_converted_is_told_with_its_folder(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run-1")
    with pytest.raises(RequestFailed, match="run-1/lora/luotuo is not a folder"):
        LoraAdapters.read(Workload.model_validate({"lora": [{"adapter": "luotuo"}]}), paths)
