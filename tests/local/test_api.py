"""The package from Python, from a job file to answers, on the local profile with a real tritonserver."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trtllm_hpc
from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.status import RunState

from .test_local_profile import built, leftovers

pytestmark = [
    pytest.mark.triton,
    # The run's processes outlive the call that starts them, as they must.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed (.ci/test does)"),
]

PROMPT = "What is machine learning?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def job(folder: Path) -> Path:
    file = folder / "job.yaml"
    sections = {
        "name": "from-python",
        "engine": built(),
        "repository": {"decoupled": True},
        "companion": {"enabled": False},
    }
    file.write_text(json.dumps(sections))
    return file


@pytest.fixture(scope="module")
def run(folder: Path, job: Path) -> Iterator[trtllm_hpc.Run]:
    settings = ["cluster.triton.server=pytriton"]
    with trtllm_hpc.submit(job, "local", settings, folder / "runs") as submitted:
        told: list[str] = []
        status = submitted.wait("ready", timeout_s=120, progress=lambda progress: told.append(str(progress)))
        assert status.state is RunState.SERVING
        assert any("of 2 ranks up" in text for text in told), told
        yield submitted
    # The end of the context has cancelled it.
    assert submitted.status.state is RunState.CANCELLED
    assert eventually(lambda: leftovers(RunPaths(submitted.folder)) == [], 10)


def test_a_client_asks_streams_and_asks_many(run: trtllm_hpc.Run) -> None:
    client = run.client()
    whole = client.generate(PROMPT, max_tokens=8)
    parts = list(client.stream(PROMPT, max_tokens=8))
    assert len(parts) > 2 and "".join(parts) == whole.text
    assert client.generate(PROMPT, max_tokens=8, exclude_input=False).text == PROMPT + whole.text
    many = client.batch([PROMPT] * 5, concurrency=3, max_tokens=8)
    assert [answer.text for answer in many] == [whole.text] * 5


def test_a_stream_that_is_left_ends_on_the_server(run: trtllm_hpc.Run) -> None:
    stream = run.client().stream(PROMPT, max_tokens=200, end_id=-1)
    next(stream)
    stream.close()
    assert run.client().generate(PROMPT, max_tokens=2).text


LENIENT: dict[str, Any] = {"min_window_seconds": 0.0, "max_late_share": 1.0}


def test_it_is_measured(run: trtllm_hpc.Run) -> None:
    told: list[str] = []
    measured = trtllm_hpc.bench(
        run,
        name="from-python",
        requests=10,
        concurrency=[1, 2],
        max_tokens=4,
        workload={"prompts": [PROMPT]},
        on_progress=lambda snapshot: told.append(str(snapshot)),
        **LENIENT,
    )
    measured.check()
    assert [result.level.label for result in measured.summary.levels] == ["1 at once", "2 at once"]
    assert told and "level" in told[-1]
    assert measured.figures["finished_rate_per_s"] > 0 and measured.figures["output_tokens_per_s"] > 0
    found = trtllm_hpc.Measurement.find("from-python:from-python", run.folder.parent)
    assert found.summary == measured.summary and [it.name for it in trtllm_hpc.Measurement.list(run)] == [
        "from-python"
    ]
    assert str(measured) == measured.files.table.read_text()
