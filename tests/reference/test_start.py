"""What a rank says about its start."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.reference.engine_config import ServeSettings
from trtllm_hpc.reference.engine_process import EngineProcess, Start
from trtllm_hpc.reference.world import World as Ranks

from .servers import World


@pytest.mark.triton
def test_the_log_says_how_long_libraries_and_weights_took(alone: World) -> None:
    assert re.search(r"rank 0: Python and the libraries took \d+\.\d s", alone.log(0))
    assert re.search(r"rank 0: weights loaded in \d+\.\d s", alone.log(0))


def test_a_library_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(
        "raise ImportError('libcudart.so.13: cannot open shared object file')", encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start = Start(tmp_path / "engine", ServeSettings(), Ranks(0, 1, 0, None), os.getpid())
    with pytest.raises(StartFailed, match=r"libraries cannot be imported: .*libcudart\.so\.13: cannot open"):
        EngineProcess(start)
