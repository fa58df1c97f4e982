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
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime import heartbeat, stop
from trtllm_hpc.runtime.heartbeat import Heartbeat, Troubles
from trtllm_hpc.runtime.process import state_of
from trtllm_hpc.runtime.records import StopRequest, add_event, read_events
from trtllm_hpc.runtime.stop import server_has_ended


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
            stop.end_what_stands_still(runtime.paths, os.getpid(), troubles)
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


class Companion:
    """A companion beside a supervisor that watches it, by a clock of the test's."""

    def __init__(
        self, paths: RunPaths, monkeypatch: pytest.MonkeyPatch, start_s: float | None, silence_s: float
    ) -> None:
        self.clock, own = Clock(), Heartbeat(paths.rank_heartbeat("supervisor", 0))
        for module in (stop, heartbeat):
            monkeypatch.setattr(module, "time", self.clock)
        self.heartbeat, self._own = Heartbeat(paths.heartbeat), own
        self._watch = stop.CompanionWatch(paths, start_s, silence_s, own.file)
        self._watch.begin()

    def after(self, seconds: int, *, beats: bool = False) -> str | None:
        """What the supervisor sees after so many seconds."""
        sentence = self._watch.missing()
        for _ in range(seconds):
            self.clock.sleep(1)
            self._own.beat()
            if beats:
                self.heartbeat.beat()
            sentence = self._watch.missing()
        return sentence


def test_only_a_companion_that_began_and_then_fell_silent_is_missing(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    companion = Companion(runtime.paths, monkeypatch, None, 20.0)
    assert companion.after(600) is None, "a companion that never began is not one that fell silent"
    assert companion.after(60, beats=True) is None
    assert companion.after(15) is None
    assert companion.after(7) == "the companion gave no sign of life for 20 s"
    assert companion.after(6, beats=True) is None


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
    paths = runtime.paths
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\n[ "$4" = --jobs=8 ] && [ -n "{state}" ] && echo {state}\n')
    squeue.chmod(0o755)
    companion = Companion(paths, monkeypatch, 120.0, 120.0)
    if begun:
        assert companion.after(1, beats=True) is None
        add_event(paths, "companion", "stage_begin", job_id="8")
    else:
        paths.jobs.write_text('{"stages": {"companion": {"job_id": "8"}}}')
    assert companion.after(10) is None and StopRequest.read(paths.stop_request) is None
    assert companion.after(6) is None
    request = StopRequest.read(paths.stop_request)
    assert (request is not None) == stops
    if request is not None:
        assert (request.by, request.reason) == ("companion", "its job 8 has ended: TIMEOUT")
        return
    sentence = companion.after(110)
    assert sentence is not None and sentence.endswith(
        f"within 120 s{said}" if not begun else f"for 120 s{said}"
    )
