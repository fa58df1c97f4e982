"""Waiting for a server, and for one that was lost."""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.bench.metrics_port import endpoint_at, serving
from trtllm_hpc.errors import BuildFailed, NotReady, RunCancelled, StartFailed
from trtllm_hpc.paths import RunPaths, write_json
from trtllm_hpc.runs import endpoint as module
from trtllm_hpc.runs.endpoint import endpoint_of, follower_of
from trtllm_hpc.runtime.records import Endpoint, add_event


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.make_folders()
    return paths


def health(status: int) -> AbstractContextManager[Endpoint]:
    """A server whose health check answers with ``status``."""
    return serving(lambda number: (404, ""), ready=status)


def test_an_endpoint_that_appears_is_found(run: RunPaths) -> None:
    waits: list[float] = []
    with health(200) as ready:

        def on_wait(waited_s: float) -> None:
            waits.append(waited_s)
            if len(waits) == 3:
                ready.write(run.endpoint)

        assert endpoint_of(run, 3600, on_wait=on_wait) == ready
    assert len(waits) == 3 and waits == sorted(waits)


@pytest.mark.parametrize("timeout_s", [0.0, 0.3])
def test_no_endpoint_is_not_ready_and_names_the_next_command(run: RunPaths, timeout_s: float) -> None:
    waits: list[float] = []
    write_json(run.jobs, {})
    with pytest.raises(NotReady) as error:
        endpoint_of(run, timeout_s, on_wait=waits.append)
    assert error.value.hint == f"trtllm-hpc logs {run.folder}"
    assert bool(waits) == (timeout_s > 0)


@pytest.mark.parametrize("timeout_s", [0.0, 0.2])
def test_a_run_that_was_only_rendered_says_so(run: RunPaths, timeout_s: float) -> None:
    with pytest.raises(NotReady, match="run was never submitted") as error:
        endpoint_of(run, timeout_s)
    assert error.value.hint == f"trtllm-hpc submit {run.spec} --cluster {run.cluster}"


@pytest.mark.parametrize(
    ("end", "data", "kind", "message"),
    [
        ("stage_end", {"exit_code": 3}, BuildFailed, "build of run run ended with exit code 3"),
        ("stage_cancelled", {}, RunCancelled, "was cancelled"),
    ],
)
def test_a_failed_or_cancelled_build_ends_the_wait(
    run: RunPaths, end: str, data: dict[str, int], kind: type[Exception], message: str
) -> None:
    add_event(run, "build", "stage_begin")
    add_event(run, "build", end, **data)
    with pytest.raises(kind, match=message):
        endpoint_of(run, 3600)


def test_an_endpoint_without_a_listening_server_is_not_ready(run: RunPaths) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint_at(closed.getsockname()[1]).write(run.endpoint)
        with pytest.raises(NotReady, match="cannot be reached: nothing listens there"):
            endpoint_of(run, 0)


@pytest.mark.parametrize("content", ["", '{"host": "n1", "addr', "[1, 2]", '{"host": "n1"}'])
def test_a_damaged_endpoint_is_named(run: RunPaths, content: str) -> None:
    add_event(run, "serve", "stage_begin")
    run.endpoint.write_text(content)
    with pytest.raises(NotReady, match=f"{run.endpoint} is empty, cut short, or does not contain"):
        endpoint_of(run, 0)


def test_the_end_of_the_serve_stage_ends_the_wait(run: RunPaths) -> None:
    add_event(run, "serve", "stage_begin")
    waits: list[float] = []

    def on_wait(waited_s: float) -> None:
        waits.append(waited_s)
        if len(waits) == 2:
            add_event(run, "serve", "stage_end", exit_code=7)

    with pytest.raises(StartFailed, match="exit code 7"):
        endpoint_of(run, 3600, on_wait=on_wait)
    assert len(waits) >= 2


def test_a_serve_stage_that_begins_again_is_waited_for(run: RunPaths) -> None:
    add_event(run, "serve", "stage_end", exit_code=1)
    waits: list[float] = []
    with health(200) as ready:

        def on_wait(waited_s: float) -> None:
            if not waits:
                add_event(run, "serve", "stage_begin")
            waits.append(waited_s)
            if waited_s > 2.5:  # longer than an end counts for nothing
                ready.write(run.endpoint)

        assert endpoint_of(run, 3600, on_wait=on_wait) == ready


def test_a_run_that_has_ended_is_reported_as_such(run: RunPaths) -> None:
    add_event(run, "serve", "stage_end", exit_code=0)
    with pytest.raises(StartFailed, match="already ended"):
        endpoint_of(run, 0)


@pytest.mark.parametrize(
    ("states", "waits"),
    [(["restarting"], True), (["failed", "ready"], True), (["ended"], False), (["failed", "ended"], False)],
)
def test_only_an_instance_that_can_come_back_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: list[str], waits: bool
) -> None:
    run, waited_s = RunPaths(tmp_path), list[float]()
    write_json(run.instances, [{"instance": number, "state": it} for number, it in enumerate(states)])
    monkeypatch.setattr(module, "endpoint_of", lambda _run, wait_s: waited_s.append(wait_s))
    follow = follower_of(run, restarts=True)
    assert follow is not None and follower_of(run) is None
    follow()
    assert (waited_s[0] > 60) is waits
