"""Asking the server to stop, and the companion's sign of life."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.runs.clock import Clock
from tests.runtime.conftest import Runtime
from tests.waiting import eventually
from trtllm_hpc.runtime import stop
from trtllm_hpc.runtime.process import state_of
from trtllm_hpc.runtime.records import StopRequest, add_event, read_events
from trtllm_hpc.runtime.stop import server_has_ended
from trtllm_hpc.runtime.troubles import Troubles


def test_the_first_stop_request_stays_on_record(runtime: Runtime) -> None:
    for by in ("companion", "cancel"):
        assert runtime("stop", f"--by={by}", "--reason=it is done").returncode == 0
    request = StopRequest.read(runtime.paths.stop_request)
    assert request is not None and (request.by, request.reason) == ("companion", "it is done")


def test_the_server_has_ended_when_the_stage_has(runtime: Runtime) -> None:
    paths = runtime.paths
    assert not server_has_ended(paths)
    add_event(paths, "serve", "stage_begin")
    assert not server_has_ended(paths)
    add_event(paths, "serve", "stage_end", exit_code=1)
    assert server_has_ended(paths)
    add_event(paths, "serve", "stage_begin")
    assert not server_has_ended(paths), "it is served again"


def companion(runtime: Runtime, work: str = "sleep 3600") -> subprocess.Popen[str]:
    """As the companion's script: the heartbeat beside its work."""
    script = f'"$@" heartbeat --while-pid=$$ & {work}; code=$?; echo "work ended with $code"; exit "$code"'
    process = subprocess.Popen(
        ["bash", "-c", script, "companion", *runtime.command()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    runtime.started.append(process)
    return process


def test_the_heartbeat_lasts_as_long_as_the_companion(runtime: Runtime) -> None:
    heartbeat = shlex.quote(str(runtime.paths.heartbeat))
    process = companion(runtime, f"until [ -e {heartbeat} ]; do sleep 0.05; done")
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "work ended with 0\n")


def test_a_companion_whose_work_is_stopped_is_ended(runtime: Runtime) -> None:
    work, troubles = subprocess.Popen(["bash", "-c", "kill -STOP $$"]), Troubles(runtime.paths, "companion")
    try:
        assert eventually(lambda: state_of(work.pid) == "T")
        for _ in range(10):
            stop._end_what_stands_still(runtime.paths, os.getpid(), troubles)
        assert work.wait(10) == -9
    finally:
        work.kill()
    trouble, failed = read_events(runtime.paths, "companion")
    assert "is stopped (SIGSTOP): bash -c" in trouble.data["why"]
    assert failed.data["reason"].endswith(", for 45 s")


def test_a_companion_whose_server_has_ended_is_ended(runtime: Runtime) -> None:
    process = companion(runtime)
    assert eventually(runtime.paths.heartbeat.exists)
    add_event(runtime.paths, "serve", "stage_end", exit_code=1)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and "work ended with 143" in output
    assert "the server has ended before the companion was done" in errors


def test_a_requested_stop_does_not_end_the_companion(runtime: Runtime) -> None:
    """The companion itself asks; its last lines must still be written."""
    runtime("stop", "--by=companion", "--reason=it is done")
    add_event(runtime.paths, "serve", "stage_end", exit_code=1)
    process = companion(runtime, "sleep 1.5")  # longer than the heartbeat waits between two looks
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "work ended with 0\n")


def test_only_a_companion_that_began_and_then_fell_silent_is_missing(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, heartbeat = Clock(), runtime.paths.heartbeat
    monkeypatch.setattr(stop, "time", clock)
    watch = stop.CompanionWatch(runtime.paths, None, 15.0)
    watch.begin()
    clock.sleep(3600)
    assert watch.missing() is None, "a companion that never began is not one that fell silent"
    for beat in range(1, 20):
        heartbeat.touch()
        os.utime(heartbeat, (beat, beat))
        assert watch.missing() is None
        clock.sleep(14)
    assert watch.missing() is None
    clock.sleep(2)
    assert watch.missing() == "the companion gave no sign of life for 15 s"


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize(
    ("state", "stops", "said"),
    [("SUSPENDED", False, ": its job 8 is SUSPENDED"), ("TIMEOUT", True, ""), ("", False, "")],
)
def test_slurm_knows_what_has_become_of_a_companion_that_is_silent(
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    begun: bool,
    state: str,
    stops: bool,
    said: str,
) -> None:
    clock, paths = Clock(), runtime.paths
    monkeypatch.setattr(stop, "time", clock)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\n[ "$4" = --jobs=8 ] && [ -n "{state}" ] && echo {state}\n')
    squeue.chmod(0o755)
    if begun:
        paths.heartbeat.touch()
        add_event(paths, "companion", "stage_begin", job_id="8")
    else:
        paths.jobs.write_text('{"stages": {"companion": {"job_id": "8"}}}')
    watch = stop.CompanionWatch(paths, 120.0, 120.0)
    watch.begin()
    assert watch.missing() is None and StopRequest.read(paths.stop_request) is None
    clock.sleep(16)
    assert watch.missing() is None
    request = StopRequest.read(paths.stop_request)
    assert (request is not None) == stops
    if request is not None:
        assert (request.by, request.reason) == ("companion", "its job 8 has ended: TIMEOUT")
        return
    clock.sleep(105)
    sentence = watch.missing()
    assert sentence is not None and sentence.endswith(
        f"within 120 s{said}" if not begun else f"for 120 s{said}"
    )
