"""What a rank reads when it starts, and what it says."""

from __future__ import annotations

import os
import re
import sys
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
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    start = Start(tmp_path / "engine", ServeSettings(), Ranks(0, 1, 0, None), os.getpid())
    with pytest.raises(StartFailed, match=r"libraries cannot be imported: .*libcudart\.so\.13: cannot open"):
        EngineProcess(start)


def test_what_is_left_out_has_its_default() -> None:
    assert ServeSettings.from_parameters({"max_queue_size": " "}) == ServeSettings()
    read = ServeSettings.from_parameters({"max_queue_size": "7", "max_tokens_in_paged_kv_cache": "640"})
    assert (read.max_queue_size, read.max_tokens_in_paged_kv_cache) == (7, 640)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("max_queue_size", "ten", "'ten', which is not a number"),
        ("max_queue_size", "-1", "must be 0 or more"),
        ("stats_check_period_ms", "0", "must be 1 or more"),
        ("cancellation_check_period_ms", "0", "must be 1 or more"),
        ("kv_cache_free_gpu_mem_fraction", "1.5", "at most 1"),
        ("kv_cache_free_gpu_mem_fraction", "nan", "above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, text: str, sentence: str) -> None:
    with pytest.raises(StartFailed, match=name) as refusal:
        ServeSettings.from_parameters({name: text})
    assert sentence in str(refusal.value)
