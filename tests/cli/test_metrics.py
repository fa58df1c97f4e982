from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.bench.metrics_port import page, serving
from tests.runs.made import written
from tests.schemas.check import documented
from trtllm_hpc.cli import command
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Endpoint


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunPaths]:
    """A run whose server finishes five requests between two looks."""
    with serving(lambda number: (200, page(finished=5 * number, queue_us=10_000 * number))) as endpoint:
        yield run_at(tmp_path / "demo-1", endpoint)


def run_at(folder: Path, endpoint: Endpoint) -> RunPaths:
    _, paths = written(folder)
    endpoint.write(paths.endpoint)
    return paths


def test_one_look_has_counts_since_the_start(run: RunPaths) -> None:
    told = CliRunner().invoke(command, ["metrics", str(run.folder)], catch_exceptions=False).output
    assert "counts and means since its start" in told
    assert re.search("KV cache in use +25 %", told)
    told = CliRunner().invoke(command, ["metrics", str(run.folder), "--json"]).stdout
    record = documented("metrics", told)
    assert record["over_s"] is None and record["url"].endswith("/metrics")
    assert record["values"]["finished[tensorrt_llm]"] == 5  # the second look


def test_watching_tells_rates_until_it_is_interrupted(run: RunPaths) -> None:
    words = ["metrics", str(run.folder), "--watch", "--json", "--interval-seconds", "0.1"]
    with subprocess.Popen([sys.executable, "-m", "trtllm_hpc", *words], stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        first, second = (documented("metrics", watching.stdout.readline().decode()) for _ in range(2))
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 0
    for record in (first, second):
        assert record["values"]["finished_per_s[tensorrt_llm]"] == pytest.approx(5 / record["over_s"])
        assert record["values"]["queue_ms[tensorrt_llm]"] == 2


def test_a_metrics_page_that_cannot_be_had_is_one_sentence(tmp_path: Path) -> None:
    with serving(lambda number: (404, "")) as endpoint:
        run = run_at(tmp_path / "demo-1", endpoint)
        failed = CliRunner().invoke(command, ["metrics", str(run.folder)])
    assert isinstance(failed.exception, RequestFailed)
    assert "could not be read: it answers 404" in str(failed.exception)
    assert "trtllm-hpc status" in (failed.exception.hint or "")
