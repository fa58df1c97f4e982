"""One job serves after the other: which may, and which may not any more."""

from __future__ import annotations

import pytest

from tests.runtime.conftest import Runtime
from tests.scheduler.conftest import fake_slurm as fake_slurm
from tests.scheduler.fake_slurm import TIMED_OUT, FakeSlurm, after_sbatch
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import RankRecord, StopRequest, add_event, read_events
from trtllm_hpc.runtime.renewal import RENEWAL, Renewal, note_renewed
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
    "words", ["--comment=*", "--none=*"], ids=["comments are overwritten", "comments are kept"]
)
def test_an_unclear_answer_to_the_next_job_queues_no_second_one(
    runtime: Runtime, fake_slurm: FakeSlurm, job: dict[str, str], words: str
) -> None:
    after_sbatch(fake_slurm, TIMED_OUT, without=words)
    (runtime.paths.folder / "bad_nodes.json").write_text('[{"host": "n9", "reason": "x", "job_id": "1"}]')
    answer = runtime("queue-next", **job)
    assert answer.returncode == 0, answer
    [following] = [it for it in fake_slurm.jobs if it != job["SLURM_JOB_ID"]]
    renewal = Renewal.read(runtime.paths.renewal)
    assert renewal is not None and renewal.next_job_id == following
    facts = fake_slurm.jobs[following]
    assert facts["environment"]["TRTLLM_HPC_FOLLOWS"] == job["SLURM_JOB_ID"]
    assert facts["dependency"] == f"afterany:{job['SLURM_JOB_ID']}" and facts["name"] == "demo-serve"


def test_the_downtime_counts_from_the_withdrawal_of_the_endpoint(runtime: Runtime) -> None:
    serve(runtime, stopped_by=RENEWAL)
    add_event(runtime.paths, "serve", "server_stop")
    stopped = read_events(runtime.paths)[-1].time
    assert follow(runtime, "COMPLETED")[0] == 0
    note_renewed(runtime.paths, stopped + 12.34)
    [event] = [event for event in read_events(runtime.paths) if event.name == "renewed"]
    assert event.data == {"number": 1, "downtime_s": 12.3}
