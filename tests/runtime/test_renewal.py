"""One job serves after the other: which may, and which may not any more."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.runtime.conftest import Runtime
from tests.scheduler.conftest import fake_slurm as fake_slurm
from tests.scheduler.fake_slurm import TIMED_OUT, FakeSlurm, after_sbatch
from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import RankRecord, StopRequest, add_event, read_events
from trtllm_hpc.runtime.renewal import RENEWAL, Renewal
from trtllm_hpc.runtime.stop import SUPERVISOR, request_stop


def serve(runtime: Runtime, *, ready: bool = True, stopped_by: str | None = None) -> None:
    """Let job 1 serve, with job 2 waiting for its end."""
    job = {"TRTLLM_HPC_JOB_ID": "1"}
    assert runtime("begin", "serve", **job).returncode == 0
    Renewal("1", "2").write(runtime.paths.renewal)
    if ready:
        add_event(runtime.paths, "serve", "ready")
    if stopped_by is not None:
        request_stop(runtime.paths, by=stopped_by, reason="a test wants it")


def unwanted(runtime: Runtime, exit_code: int) -> str:
    """The job that the script cancels at its end."""
    return runtime("unwanted", exit_code, TRTLLM_HPC_JOB_ID="1").stdout.strip()


@pytest.mark.parametrize(
    ("stopped_by", "exit_code", "ready", "cancelled"),
    [
        (RENEWAL, 0, True, ""),
        (None, 143, True, ""),  # preemption, or the time limit without a warning
        (SUPERVISOR, 7, True, ""),
        (SUPERVISOR, 7, False, "2"),  # its engine would be wrong again
        (None, 7, False, "2"),  # the preflight has refused
        ("cancel", 0, True, "2"),
        ("companion", 0, True, "2"),
    ],
)
def test_the_next_job_goes_with_the_reason_to_serve(
    runtime: Runtime, stopped_by: str | None, exit_code: int, ready: bool, cancelled: str
) -> None:
    serve(runtime, ready=ready, stopped_by=stopped_by)
    assert unwanted(runtime, exit_code) == cancelled
    renewal = Renewal.read(runtime.paths.renewal)
    assert renewal is not None and renewal.next_job_id == (None if cancelled else "2")


def follow(runtime: Runtime, state: str) -> tuple[int, str]:
    answer = runtime("follow", "--job=1", f"--state={state}", TRTLLM_HPC_JOB_ID="2")
    return answer.returncode, answer.stdout


def test_the_next_job_puts_the_logs_of_the_one_before_aside(runtime: Runtime) -> None:
    paths = runtime.paths
    serve(runtime, stopped_by=RENEWAL)
    for log in ("serve_0.out", "preflight_1.out", "serve.out", "companion_0.out"):
        (paths.logs / log).write_text(log)
    RankRecord("serve", 0, 1, "1", "n1", 7, 1.0).write(paths.rank_record("serve", 0))
    for readings in (file := paths.gpu_readings("serve", 0), file.with_suffix(".old")):
        readings.write_text("{}\n")  # which would add up to gigabytes
    assert follow(runtime, "COMPLETED") == (0, "")
    assert StopRequest.read(paths.stop_request) is None
    before = RunPaths(paths.attempts / "1")
    assert sorted(file.name for file in before.logs.iterdir()) == ["preflight_1.out", "serve_0.out"]
    assert list(before.ranks.iterdir()) == [before.rank_record("serve", 0)]
    assert not list(paths.ranks.iterdir())
    assert sorted(file.name for file in paths.logs.iterdir()) == ["companion_0.out", "serve.out"]
    assert Renewal.read(paths.renewal) == Renewal("2", number=1)


@pytest.mark.parametrize(
    ("stopped_by", "state", "why"),
    [("cancel", "COMPLETED", "stopped by cancel"), (None, "CANCELLED", "job 1 before it was cancelled")],
)
def test_after_the_end_of_the_run_the_next_job_does_nothing(
    runtime: Runtime, stopped_by: str | None, state: str, why: str
) -> None:
    serve(runtime, stopped_by=stopped_by)
    code, said = follow(runtime, state)
    assert code != 0 and why in said
    assert not runtime.paths.attempts.exists()


def test_jobs_that_fail_one_after_the_other_come_to_an_end(runtime: Runtime) -> None:
    serve(runtime, ready=False)
    Renewal("1", "2", number=3, failures=3).write(runtime.paths.renewal)
    assert unwanted(runtime, 143) == "2"
    code, said = follow(runtime, "NODE_FAIL")
    assert code != 0 and "4 jobs in a row" in said


@pytest.mark.parametrize(
    ("stopped_by", "exit_code", "ready", "state", "why"),
    [
        (RENEWAL, 0, True, "COMPLETED", None),
        (None, 143, True, "TIMEOUT", None),
        (None, 143, True, "", None),  # Slurm has forgotten it
        (None, 143, False, "PREEMPTED", None),
        (None, 143, False, "TIMEOUT", "it was not ready when its time was over"),
        (SUPERVISOR, 7, True, "FAILED", "rank 0 on n1 was killed by signal 9"),
        (None, None, True, "NODE_FAIL", "rank 0 on n1 was killed by signal 9"),
        (None, None, False, "NODE_FAIL", "it was killed (NODE_FAIL)"),
        (None, 137, False, "FAILED", "its exit code was 137"),
    ],
)
def test_a_job_whose_end_was_planned_has_not_failed(
    runtime: Runtime, stopped_by: str | None, exit_code: int | None, ready: bool, state: str, why: str | None
) -> None:
    paths = runtime.paths
    serve(runtime, ready=ready, stopped_by=stopped_by)
    if why is not None and why.startswith("rank"):
        add_event(paths, "serve", "instance_end", instance=0, why=why, then="it is not started again")
        add_event(paths, "serve", "failed", why=why)
    add_event(paths, "serve", "proxy_restarted", why="the run went on after this")
    if exit_code is not None:
        add_event(paths, "serve", "stage_end", exit_code=exit_code, job_id="1")
    Renewal("1", "2", failed=[{"job_id": "0", "why": "of old", "attempt": 1}]).write(paths.renewal)
    (paths.attempts / "1").mkdir(parents=True)
    begun = time.monotonic()
    if why is None:
        assert follow(runtime, state) == (0, "")
        assert time.monotonic() - begun < 5, "it waits for nothing"
    else:
        following = runtime.start("follow", "--job=1", f"--state={state}", TRTLLM_HPC_JOB_ID="2")
        assert eventually(lambda: (read := Renewal.read(paths.renewal)) and read.job_id == "2")
        following.kill()  # in its pause
        following.communicate()
    renewal = Renewal.read(paths.renewal)
    assert renewal is not None and renewal.failures == (0 if why is None else 1)
    assert [(job["job_id"], job["why"], job["attempt"]) for job in renewal.failed] == [
        ("0", "of old", 1),
        *([] if why is None else [("1", why, 2)]),
    ]


@pytest.fixture
def job(runtime: Runtime, fake_slurm: FakeSlurm) -> dict[str, str]:
    """The variables of the job that serves."""
    runtime.paths.scripts.mkdir(exist_ok=True)
    runtime.paths.sbatch("serve").write_text("#!/bin/bash\n#SBATCH --job-name=demo-serve\n")
    number = fake_slurm.add("RUNNING", script=str(runtime.paths.sbatch("serve")), name="demo-serve")
    return {
        "TRTLLM_HPC_JOB_ID": number,
        "SLURM_JOB_ID": number,
        "SLURM_JOB_NAME": "demo-serve",
        "TRTLLM_HPC_FOLLOWS": number,
    }


def test_a_refused_next_job_is_told_and_the_server_goes_on(
    runtime: Runtime, fake_slurm: FakeSlurm, job: dict[str, str]
) -> None:
    assert runtime("begin", "serve", **job).returncode == 0
    fake_slurm.trouble("sbatch", "sbatch: error: Batch job submission failed: Invalid qos specification")
    answer = runtime("queue-next", **job)
    assert answer.returncode != 0 and "could not be queued" in answer.stdout, answer
    assert "Invalid qos" in answer.stdout
    assert [event.name for event in read_events(runtime.paths)] == ["stage_begin", "not_renewed"]
    assert unwanted(runtime, 0) == ""


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--comment=*", "demo-serve"),
        ("--none=*", "demo-serve"),
        ("--none=*", "demo-serve:0123456789abcdef"),
    ],
    ids=["comments are overwritten", "comments are kept", "the profile sets a comment"],
)
def test_an_unclear_answer_to_the_next_job_queues_no_second_one(
    runtime: Runtime, fake_slurm: FakeSlurm, job: dict[str, str], words: str, name: str
) -> None:
    after_sbatch(fake_slurm, TIMED_OUT, without=words)
    job["SLURM_JOB_NAME"] = name
    if ":" in name:
        with runtime.paths.sbatch("serve").open("a") as script:
            script.write("#SBATCH --comment=project-7\n")
    (runtime.paths.folder / "bad_nodes.json").write_text('[{"host": "n9", "reason": "x", "job_id": "1"}]')
    answer = runtime("queue-next", **job)
    assert answer.returncode == 0, answer
    [following] = [it for it in fake_slurm.jobs if it != job["SLURM_JOB_ID"]]
    renewal = Renewal.read(runtime.paths.renewal)
    assert renewal is not None and renewal.next_job_id == following
    facts = fake_slurm.jobs[following]
    assert facts["environment"]["TRTLLM_HPC_FOLLOWS"] == job["SLURM_JOB_ID"]
    assert facts["dependency"] == f"afterany:{job['SLURM_JOB_ID']}" and facts["name"] == name


PROXY = """
import os, signal, socket, sys
signal.signal(signal.SIGUSR1, lambda *_: signal.signal(signal.SIGUSR1, signal.SIG_DFL))
up = ",".join(["openai", "openai_0", *[""] * 15, "UP"])
listener = socket.socket(socket.AF_UNIX)
listener.bind(os.environ["TRTLLM_HPC_PROXY"] + "/socket")
listener.listen()
while True:
    connection, _ = listener.accept()
    connection.recv(1 << 16)
    connection.sendall(up.encode())
    connection.close()
"""
"""A stand-in for HAProxy with an open request: after SIGUSR1 it stays, and still reaches the server."""


def test_a_run_that_drains_publishes_nothing_and_does_not_fail(runtime: Runtime, tmp_path: Path) -> None:
    paths, proxy = runtime.paths, tmp_path / "haproxy"
    proxy.write_text(f"#!{sys.executable} -IS\n{PROXY}")
    proxy.chmod(0o755)
    paths.script("instance").write_text('while [ ! -e "$RUN/stop.json" ]; do sleep 0.05; done\n')
    options = ["--count=1", "--restarts=0", "--leaders=0:0", "--drain-seconds=1"]
    options += [f"--program={proxy}", "--kinds=openai", "--loopback"]
    job = {"TRTLLM_HPC_JOB_ID": "1", "RUN": str(paths.folder)}
    supervisor = runtime.start("instances", *options, **job)
    assert eventually(lambda: read_events(paths))
    paths.ready_record("serve").write_text(json.dumps({"models": ["m"], "started_at": 1.0}))
    assert eventually(paths.endpoint.exists)
    supervisor.send_signal(signal.SIGUSR1)
    said, errors = supervisor.communicate(timeout=60)
    assert (supervisor.returncode, errors) == (0, ""), said
    events = read_events(paths, "serve")
    names = ["server_start", "instance_ready", "ready", "draining", "server_stop"]
    assert [event.name for event in events] == names
    request = StopRequest.read(paths.stop_request)
    assert request is not None and request.by == RENEWAL
    assert request.requested_at - events[-2].time > 1, "the open request has its whole time"
