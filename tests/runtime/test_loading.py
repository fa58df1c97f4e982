"""What a rank's log shows of the start of its server, and how ``status`` puts it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runs.clock import Clock
from trtllm_hpc.logs import loading as words
from trtllm_hpc.logs.loading import load_line, loading_now
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime import loading
from trtllm_hpc.runtime.loading import TABLE, Loading
from trtllm_hpc.runtime.records import RankRecord

RELEASE_1_1 = """
2 [12/20/2025-04:20:21] [TRT-LLM] [I] Use 63.32 GB for model weights.
5 Loading safetensors weights in parallel: 100%|##########| 15/15 [00:00<00:00, 81.92it/s]
50 Model init total -- 49.14s
51 [TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).
51 [12/20/2025-04:21:10] [TRT-LLM] [I] [Autotuner] Autotuning process starts ...
58 2025-12-20 04:21:17,836 - INFO - flashinfer.jit: Loading JIT ops: norm
71 2025-12-20 04:21:30,232 - INFO - flashinfer.jit: Finished loading JIT ops: norm
78 [12/20/2025-04:21:37] [TRT-LLM] [I] [Autotuner] Autotuning process ends
78 [12/20/2025-04:21:37] [TRT-LLM] [I] Creating CUDA graph instances for 11 batch sizes.
91 [TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 63.52 GiB
92 [TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86720).
93 [12/20/2025-04:21:52] [TRT-LLM] [I] [Autotuner] Autotuning process starts ...
94 [12/20/2025-04:21:53] [TRT-LLM] [I] [Autotuner] Autotuning process ends
94 [12/20/2025-04:21:53] [TRT-LLM] [I] Creating CUDA graph instances for 11 batch sizes.
98 [12/20/2025-04:21:57] [TRT-LLM] [I] Setting PyTorch memory fraction to 0.5983721838660735 (71.62 GiB)
"""
"""From a public log of ``trtllm-serve`` 1.1.0rc3, with gpt-oss-120b; before each line its second."""
MAIN = """
0 [TRT-LLM] [I] [warmup][pid=7][rank=0][purpose=final][pass=2] attention_jit: start
3 [TRT-LLM] [I] [warmup][pid=7][rank=0][purpose=final][pass=2] attention_jit: done in 3.0s
3 [TRT-LLM] [I] [warmup][pid=7][rank=0][purpose=final][pass=2] general: start
8 [TRT-LLM] [I] [warmup][pid=7][rank=0][purpose=final][pass=2] autotuner: start
8 [TRT-LLM] [I] Running autotuner warmup...
9 [TRT-LLM] [I] [Autotuner] Autotuning process starts ...
20 [TRT-LLM] [I] [Autotuner] Autotuning process ends
21 [TRT-LLM] [I] [warmup][pid=7][rank=0][purpose=final][pass=2] cuda_graph_capture: start
27 [TRT-LLM] [I] [warmup][pid=7][rank=0][purpose=final][pass=2] summary: total=27.0s | general=5.0s (19%)
"""
"""Lines in the order of upstream's main branch of November 2026."""


class Watched:
    """A rank's log as time goes by."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.log, self.clock = folder / "serve_0.out", clock
        self.log.write_text("[TRT-LLM] [I] Running torch.compile warmup...\n")  # of an earlier attempt
        self.ready = folder / "ready"
        self.loading = Loading(self.log, self.ready)
        self.fields: dict[str, Any] = {}

    def write(self, text: str) -> dict[str, Any]:
        """Write lines at their seconds, and return what the rank records in the end."""
        for second, _, line in (line.partition(" ") for line in text.strip().splitlines()):
            self.clock.now = max(1000.0 + float(second), self.clock.now + 0.001)
            with self.log.open("a") as log:
                log.write(f"{line}\n")
            self.look()
        return self.fields

    def look(self) -> None:
        self.loading._next = min(self.loading._next, self.clock.now)
        self.fields |= self.loading.look()


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    clock = Clock()
    monkeypatch.setattr(loading, "time", clock)
    monkeypatch.setattr(words, "time", clock)
    return Watched(tmp_path, clock)


def test_the_phases_of_a_real_log(watched: Watched) -> None:
    seconds = {"weights": 49.1, "compile": 13.0, "autotune": 15.0, "warm_up": 17.0, "kv_cache": 1.0}
    assert watched.write(RELEASE_1_1)["load_s"] == pytest.approx(seconds, abs=0.2)
    assert watched.fields["loading"] is None


def test_the_phases_of_upstreams_main_branch(watched: Watched) -> None:
    seconds = {"compile": 8.0, "autotune": 12.0, "warm_up": 6.0}
    assert watched.write(MAIN)["load_s"] == pytest.approx(seconds, abs=0.2)


def test_a_server_that_is_ready_ends_the_phase_and_its_log_is_no_longer_read(watched: Watched) -> None:
    """Its workers write no line at the end."""
    assert watched.write("0 Loading weights:  12%|#\r")["loading"] == "weights"
    watched.ready.touch()
    watched.clock.now += 30
    watched.look()
    assert watched.fields["loading"] is None
    assert watched.fields["load_s"] == pytest.approx({"weights": 30.0}, abs=0.2)
    assert watched.write("60 Running autotuner warmup...")["loading"] is None


def test_every_line_begins_or_ends_a_phase_that_has_words() -> None:
    assert {it["phase"].strip("+-") for it in TABLE["lines"]} - {""} == set(TABLE["phases"])


def test_a_slow_rank_is_named(tmp_path: Path, watched: Watched) -> None:
    paths = RunPaths(tmp_path)
    paths.ranks.mkdir()
    first = RankRecord("serve", 0, 3, "7", "n1", 1, 1.0, load_s={"weights": 61.0, "warm_up": 0.2})
    slow = replace(first, rank=2, host="n2", load_s={"weights": 95.0})
    for record in (first, replace(first, rank=1), slow):
        record.write(paths.rank_record("serve", record.rank))
    expected = "weights 95 s (rank 2 on n2; median 61 s), warm-up under 1 s"
    assert load_line(RunSnapshot(paths)) == expected
    assert loading_now(RunSnapshot(paths)) == ""
    watched.clock.now = 1042.0
    replace(first, loading="autotune", loading_since=1030.0).write(paths.rank_record("serve", 0))
    replace(slow, loading="weights", loading_since=1000.0).write(paths.rank_record("serve", 2))
    assert loading_now(RunSnapshot(paths)) == ", loading weights, 42 s (rank 2 on n2)"
