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
from trtllm_hpc.cli.metrics import in_unit, server_text
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
    words = ["metrics", str(run.folder), "--watch", "--json"]
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
    assert "could not be read: HTTP 404" in str(failed.exception)
    assert "trtllm-hpc status" in (failed.exception.hint or "")


# The table ---------------------------------------------------------------------------------


def test_the_table_as_a_whole() -> None:
    values = {
        "requests_active": 3.0,
        "kv_used_share": 0.625,
        "memory_gpu_bytes": 3 * 2**30,
        "output_tokens_per_s": 812.5,
        "finished_per_s[ensemble]": 4.0,
        "finished_per_s[tensorrt_llm]": 4.25,
        "pending[tensorrt_llm]": 2.0,
        "queue_ms[tensorrt_llm]": 12.34,
    }
    rows = [" ".join(line.split()) for line in server_text(values).splitlines()[2:]]
    assert {
        "KV cache in use 62 %",
        "GPU memory of the engine 3.0 GiB",
        "output tokens 812.5 tokens/s",
    } <= set(rows)
    assert "queue ms tensorrt_llm 12.3 ms" in rows and len(rows) == len(values)


def test_what_is_missing_is_named_and_engines_of_two_models_are_told_apart() -> None:
    assert "has no metrics of the engine" in server_text({"pending[tensorrt_llm]": 0.0})
    text = server_text({"requests_active[context]": 1.0, "requests_active[generation]": 2.0})
    assert " context " in text and " generation " in text and "shows nothing" not in text


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.1, "share", "10 %"),
        (250.4, "ms", "250 ms"),
        (12.0, "blocks", "12"),
        (64.0, "tokens", "64 tokens"),
        (1.5, "GPUs", "1.5"),
        (310.0, "W", "310 W"),
    ],
)
def test_figures_are_told_in_their_unit(value: float, unit: str, words: str) -> None:
    assert in_unit(value, unit) == words
