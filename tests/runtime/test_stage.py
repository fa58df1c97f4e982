"""The first and the last word of a stage, and the gate against half-submitted runs."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

import pytest

from tests.runs.clock import Clock
from tests.runtime.conftest import Runtime
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime import stage
from trtllm_hpc.runtime.engine_cache.cache import link
from trtllm_hpc.runtime.records import TOKEN_VARIABLE, Endpoint, RankRecord, add_event, read_events
from trtllm_hpc.runtime.stage import SUBMISSION_VARIABLE
from trtllm_hpc.runtime.stop import request_stop
from trtllm_hpc.scheduler.submission_record import SubmissionRecord


def events(paths: RunPaths) -> list[str]:
    return [event.name for event in read_events(paths)]


@pytest.mark.parametrize(
    ("code", "names", "reason"),
    [
        (137, ["server_start", "ready"], "the supervisor of the run was killed by signal 9"),
        (143, ["server_start", "ready"], None),
        (7, ["server_start"], None),
        (137, [], None),  # a step before the supervisor
        (137, ["server_start", "ready", "server_stop"], None),  # the companion's exit code
        (137, ["server_start", "ready", "failed"], None),  # the leader has given the supervisor up
    ],
)
def test_a_killed_supervisor_is_named_by_the_batch_script(
    runtime: Runtime, code: int, names: list[str], reason: str | None
) -> None:
    for name in ("server_start", "stage_begin", *names):
        add_event(runtime.paths, "serve", name)
    stage.end(runtime.paths, "serve", code)
    reasons = [event.data["reason"] for event in read_events(runtime.paths) if "reason" in event.data]
    assert reasons == ([] if reason is None else [reason])


@pytest.mark.parametrize(("own", "reasons"), [([], ["the companion was killed by signal 9"]), (["1"], [])])
def test_a_companion_in_the_server_s_job_ends_once_and_is_named_if_it_was_killed(
    runtime: Runtime, own: list[str], reasons: list[str]
) -> None:
    """Its script records its end itself, unless it was killed; then the batch script does."""
    add_event(runtime.paths, "companion", "stage_begin")
    for code in (*own, "137"):
        assert runtime("end", "companion", code).returncode == 0
    events = read_events(runtime.paths)
    assert [event.data["reason"] for event in events if "reason" in event.data] == reasons
    assert [event.data.get("exit_code") for event in events if event.name == "stage_end"] == [
        int((*own, "137")[0])
    ]


def test_a_companion_that_was_killed_for_a_reason_keeps_that_reason(runtime: Runtime) -> None:
    """Its heartbeat kills a stopped process after it has recorded why."""
    why = "process 7 on n1 is stopped (SIGSTOP): python -m trtllm_hpc bench run, for 45 s"
    add_event(runtime.paths, "companion", "stage_begin")
    add_event(runtime.paths, "companion", "failed", reason=why)
    stage.end(runtime.paths, "companion", 137)
    assert [event.data["reason"] for event in read_events(runtime.paths) if "reason" in event.data] == [why]


def test_the_endpoint_of_a_killed_leader_goes_with_its_stage(runtime: Runtime) -> None:
    Endpoint("77", "n1", "10.0.0.1", 8, 9, 10, ["ensemble"], 5.0).write(runtime.paths.endpoint)
    assert runtime("end", "companion", "9").returncode == 0
    assert runtime.paths.endpoint.exists()
    assert runtime("end", "serve", "9").returncode == 0
    assert not runtime.paths.endpoint.exists()


def test_a_submission_that_is_completed_meanwhile_begins(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further submission is a sign of life: the patience counts from the last."""
    record, clock = SubmissionRecord("slurm"), Clock()
    record.write(runtime.paths)

    def complete() -> None:
        record.complete = True
        record.write(runtime.paths)

    for number, name in enumerate(("build", "serve", "companion"), start=1):
        clock.at(80 * number, partial(record.add, runtime.paths, name, "1"))
    clock.at(300, complete)
    monkeypatch.setattr(stage, "time", clock)
    monkeypatch.setenv(TOKEN_VARIABLE, record.token)
    monkeypatch.setenv(SUBMISSION_VARIABLE, "100")
    assert stage.begin(runtime.paths, "build") == 0
    assert clock.now >= 1300 and events(runtime.paths) == ["stage_begin"]


@pytest.mark.parametrize("record", ["incomplete", "another", "none", "damaged"])
def test_a_half_submitted_run_starts_nothing(runtime: Runtime, record: str) -> None:
    mine = SubmissionRecord("slurm")
    if record == "incomplete":
        mine.write(runtime.paths)
    elif record == "another":
        SubmissionRecord("slurm", complete=True).write(runtime.paths)
    elif record == "damaged":
        runtime.paths.jobs.write_text('{"token": ')
    answer = runtime("begin", "build", **{TOKEN_VARIABLE: mine.token, SUBMISSION_VARIABLE: "0.2"})
    assert answer.returncode == ExitCode.SUBMISSION
    assert "half submitted" in answer.stderr and "next: trtllm-hpc resume " in answer.stderr
    assert events(runtime.paths) == ["submission_interrupted"]


def test_serving_again_removes_the_last_attempt(runtime: Runtime) -> None:
    paths = runtime.paths
    Endpoint("1", "n1", "10.0.0.1", 1, 2, 3, [], 1.0).write(paths.endpoint)
    request_stop(paths, by="companion", reason="done")
    paths.heartbeat.touch()
    RankRecord("serve", 0, 1, "1", "n1", 1, 1.0).write(paths.rank_record("serve", 0))
    assert runtime("begin", "companion").returncode == 0
    assert paths.endpoint.exists() and paths.stop_request.exists(), "another stage must not"
    assert runtime("begin", "serve").returncode == 0
    left = {file for file in (paths.endpoint, paths.stop_request, paths.heartbeat) if file.exists()}
    assert left == set() and list(paths.ranks.iterdir()) == []


def test_a_node_that_does_not_see_the_cache_does_not_say_that_the_engine_was_removed(
    runtime: Runtime, tmp_path: Path
) -> None:
    entry = tmp_path / "engines" / "engine-0123456789abcdef"
    link(runtime.paths.engine, entry / "output")
    answer, host = runtime("begin", "serve", TRTLLM_HPC_JOB_ID="77"), socket.gethostname()
    assert answer.returncode == ExitCode.START
    [event] = read_events(runtime.paths, "serve")
    assert event.data["reason"] == (
        f"node {host} does not see the engine {entry.name}: it was removed, or is not mounted"
    )
    assert event.data["next"].startswith(f"ls {entry} where you submit: if it is there, mount it on {host}")
    assert answer.stderr == f"error: {event.data['reason']}.\n  next: {event.data['next']}\n"


@pytest.mark.parametrize("code", [0, 3])
def test_a_file_that_ends_every_bash_is_named(runtime: Runtime, tmp_path: Path, code: int) -> None:
    file = tmp_path / "start.sh"
    file.write_text(f"exit {code}\n")
    assert runtime("begin", "build", BASH_ENV=str(file)).returncode == ExitCode.START
    [event] = read_events(runtime.paths, "build")
    assert event.data["reason"] == (
        f"bash ends in the file that BASH_ENV names, {file}, before a script begins"
    )
    file.write_text("echo a module system says hello\n")
    assert runtime("begin", "build", BASH_ENV=str(file)).returncode == 0
