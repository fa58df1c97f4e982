"""``benchmarks/gpu_story.py`` on a sandbox without GPUs, with the tiny model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.thorough]

ROOT = Path(__file__).parents[2]
SMALL = ["--model", "tiny", "--dtype", "float32", "--concurrency", "2", "--seconds", "1"]
SHORT = ["--input-tokens", "8", "--output-tokens", "4", "--long-prompt", "64"]


def benchmark(folder: Path, story: str) -> list[str]:
    places = ["--runs", str(folder / "runs"), "--out", str(folder / "out")]
    return [sys.executable, "-m", "benchmarks.gpu_story", "--stories", story, *SMALL, *SHORT, *places]


def has_sandbox(benchmark: subprocess.Popen[str]) -> bool:
    return Path(f"/run/trtllm-hpc/gpu-story-{benchmark.pid}").exists()


def test_a_story_is_measured_and_told(tmp_path: Path) -> None:
    with subprocess.Popen(
        benchmark(tmp_path, "tp1"),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as done:
        _, errors = done.communicate(timeout=400)
    assert done.returncode == 0, errors
    story = json.loads((tmp_path / "out" / "gpu.json").read_text())["stories"]["tp1"]
    assert "failure" not in story
    assert len(story["levels"]) == 3 * 2
    assert all(level["output_tokens_per_s"] is not None for level in story["levels"])
    assert [start["built"] for start in story["starts"]] == [True, False]
    assert all(start["phases_s"]["load"] > 0 for start in story["starts"])
    assert len(story["provenance"]["server"]["nodes"]) == 1
    assert story["long_prompts"]["beside"]["requests"] > 0
    page = (tmp_path / "out" / "gpu.md").read_text()
    assert "## `tp1`: one GPU" in page
    assert "1 rank on 1 node" in page
    assert not has_sandbox(done)


def test_an_interrupted_run_leaves_no_cluster_and_says_so(tmp_path: Path) -> None:
    with subprocess.Popen(
        benchmark(tmp_path, "tp1"), cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "first start" in line:
                break
        assert has_sandbox(running)
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert not has_sandbox(running)
    assert "**Not complete.** The benchmark was interrupted." in (tmp_path / "out" / "gpu.md").read_text()
