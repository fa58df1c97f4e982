"""The package from Python, from a job file to answers, on the local profile with a real tritonserver."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trtllm_hpc
from tests.waiting import eventually
from trtllm_hpc.errors import (
    ConfigError,
    ExitCode,
    InvalidMeasurement,
    InvalidRequest,
    NotReady,
    RequestFailed,
    RunNotFound,
)
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


def test_a_run_is_found_and_told(run: trtllm_hpc.Run, folder: Path) -> None:
    assert [run.id] == [it.id for it in trtllm_hpc.Run.list(folder / "runs")]
    assert trtllm_hpc.Run.find("from-python", folder / "runs").folder == run.folder
    assert list(run.jobs) == ["serve"] and run.scripts == [run.folder / "scripts" / "serve.sbatch"]
    assert run.job.engine.tensor_parallel == 2
    assert run.endpoint is not None
    assert "rank 1 on" in run.logs(rank=1) and "ready:" in run.logs()
    with pytest.raises(RunNotFound):
        trtllm_hpc.Run.find("nosuch", folder / "runs")


def test_a_client_asks_streams_and_asks_many(run: trtllm_hpc.Run) -> None:
    client = run.client()
    whole = client.generate(PROMPT, max_tokens=8)
    parts = list(client.stream(PROMPT, max_tokens=8))
    assert len(parts) > 2 and "".join(parts) == whole.text
    assert whole.output_tokens is not None and 4 <= whole.output_tokens <= 8
    assert client.generate(PROMPT, max_tokens=8, exclude_input=False).text == PROMPT + whole.text
    many = client.batch([PROMPT] * 5, concurrency=3, max_tokens=8)
    assert [answer.text for answer in many] == [whole.text] * 5
    with pytest.raises(RequestFailed, match="has no input for --min-p"):
        client.generate(PROMPT, min_p=0.5)
    with pytest.raises(TypeError, match="'temprature'"):
        client.generate(PROMPT, temprature=0.5)
    with pytest.raises(InvalidRequest) as refused:
        client.chat([{"role": "user", "content": PROMPT}])
    assert refused.value.hint is not None and 'run.client(protocol="openai")' in refused.value.hint
    with pytest.raises(TypeError, match=r"call run\.client"):
        trtllm_hpc.Client(run, protocol="openai")  # type: ignore[arg-type]


def test_a_client_asks_over_openais_protocol(run: trtllm_hpc.Run) -> None:
    with run.client(protocol="openai") as client:
        assert client.generate(PROMPT, max_tokens=8, temperature=0.0).output_tokens == 8


def test_a_stream_that_is_left_ends_on_the_server(run: trtllm_hpc.Run) -> None:
    stream = run.client().stream(PROMPT, max_tokens=200, end_id=-1)
    next(stream)
    stream.close()
    assert run.client().generate(PROMPT, max_tokens=2).text


def test_many_are_asked_at_once_with_asyncio(run: trtllm_hpc.Run) -> None:
    async def ask() -> list[str]:
        async with run.async_client() as client:
            answers = await client.batch([PROMPT, "Two"], max_tokens=4)
            return [answer.text for answer in answers]

    assert len(asyncio.run(ask())) == 2


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
    # The stand-in has no tokenizer, so tokens are unknown.
    assert measured.figures["finished_rate_per_s"] > 0 and "output_tokens_per_s" not in measured.figures
    found = trtllm_hpc.Measurement.find("from-python:from-python", run.folder.parent)
    assert found.summary == measured.summary and [it.name for it in trtllm_hpc.Measurement.list(run)] == [
        "from-python"
    ]
    assert str(measured) == measured.files.table.read_text()


def test_a_measurement_that_is_not_valid_is_told_when_it_is_checked(run: trtllm_hpc.Run) -> None:
    limits: dict[str, Any] = {**LENIENT, "min_requests": 1_000_000}
    measured = trtllm_hpc.bench(run, duration_seconds=0.2, concurrency=1, max_tokens=200, **limits)
    assert not measured.valid
    with pytest.raises(InvalidMeasurement) as refused:
        measured.check()
    assert refused.value.hint is not None and measured.name in refused.value.hint


def test_what_cannot_be_measured_is_refused_before_a_request_is_sent(run: trtllm_hpc.Run) -> None:
    with pytest.raises(TypeError, match="no setting 'request'; did you mean 'requests'"):
        trtllm_hpc.bench(run, request=10)
    with pytest.raises(ConfigError, match="rate_per_second: an open loop has a rate"):
        trtllm_hpc.bench(run, rate_per_second=2, concurrency=2)
    with pytest.raises(ConfigError, match="max_tokens: 99999 tokens"):
        trtllm_hpc.bench(run, max_tokens=99999)
    with pytest.raises(ConfigError, match="another file's name"):
        trtllm_hpc.bench(run, name="progress")
    assert "progress" not in [it.name for it in trtllm_hpc.Measurement.list(run)]


def test_plans_and_scripts_without_a_submission(job: Path, folder: Path) -> None:
    plan = trtllm_hpc.plan(job, "sandbox", ["serve.nodes=2"])
    assert (plan.layout.nodes, plan.layout.world_size, plan.has_proxy) == (2, 2, True)
    rendered = trtllm_hpc.render(job, "local", runs=folder / "rendered")
    assert rendered.status.state is RunState.RENDERED
    with pytest.raises(NotReady):
        rendered.client()
    with pytest.raises(ConfigError) as caught:
        trtllm_hpc.plan(job, "local", ["engine.tensor_paralel=2"])
    assert caught.value.exit_code == ExitCode.CONFIG and "tensor_parallel" in str(caught.value)
