"""What a second submission of a run's folder repeats, and what it refuses."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import Any

import pytest

from tests.runs.conftest import RunOf
from tests.runs.made import written
from tests.scheduler.fake_slurm import FakeSlurm
from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.status import RunState, run_status
from trtllm_hpc.runs.submit import cancel_run, resume_run, sole_command, submit_stages
from trtllm_hpc.runtime.records import Endpoint, RankRecord, StopRequest, add_event, read_events
from trtllm_hpc.scheduler.submission_record import read_submission

FAILED = ("COMPLETED", "FAILED=8:0", "CANCELLED")


def new_jobs(fake_slurm: FakeSlurm, before: int) -> list[tuple[str, Any]]:
    """Script and dependency of each job that was submitted later."""
    return [(Path(job["script"]).stem, job["dependency"]) for job in list(fake_slurm.jobs.values())[before:]]


def leave_traces(paths: RunPaths) -> None:
    """What an attempt writes."""
    for stage in ("build", "serve", "companion"):
        add_event(paths, stage, "stage_begin", job_id="1")
        add_event(paths, stage, "stage_end", exit_code=0 if stage == "build" else 8)
        paths.batch_log(stage).write_text(f"the first {stage}\n")
    for step in ("preflight", "serve.1"):
        paths.rank_log(step, 0).write_text("error: the first attempt\n")
        paths.rank_record(step, 0).write_text("{}")
    Endpoint("2", "n1", "10.0.0.1", 1, 2, 3, ["ensemble"], 0.0).write(paths.endpoint)
    StopRequest("companion", "it is done", 0.0).write(paths.stop_request)


def test_the_engine_is_not_built_again(run_of: RunOf, fake_slurm: FakeSlurm) -> None:
    paths = run_of(*FAILED)
    first = read_submission(paths)
    record = resume_run(paths)
    serve = record.stages["serve"].job_id
    assert new_jobs(fake_slurm, 3) == [("serve", None), ("companion", f"after:{serve}")]
    assert first is not None and record.complete and record.token != first.token
    assert record.stages["build"] == first.stages["build"]
    status = run_status(paths)
    assert [stage.state for stage in status.stages] == ["COMPLETED", "PENDING", "PENDING"]
    assert status.state is RunState.RUNNING


def test_nobody_takes_what_the_first_attempt_wrote_for_news(run_of: RunOf) -> None:
    paths = run_of(*FAILED)
    leave_traces(paths)
    resume_run(paths)
    assert {event.stage for event in read_events(paths)} == {"build"}
    assert [log.name for log in paths.logs.iterdir()] == ["build.out"]
    assert not any(file.exists() for file in (paths.endpoint, paths.stop_request, *paths.ranks.iterdir()))
    kept = paths.attempts / "1"
    assert (kept / "logs" / "serve.1_0.out").read_text() == "error: the first attempt\n"
    assert sorted(it.name for it in (kept / "logs").iterdir()) == [
        *("companion.out", "preflight_0.out", "serve.1_0.out", "serve.out")
    ]
    assert (kept / "jobs.json").exists() and (kept / "events" / "companion.jsonl").exists()


def test_a_companion_needs_its_server_again(run_of: RunOf, fake_slurm: FakeSlurm) -> None:
    """The server was stopped in good order, and its figures were not valid."""
    paths = run_of("COMPLETED", "COMPLETED", "FAILED=10:0")
    resume_run(paths)
    assert [name for name, _ in new_jobs(fake_slurm, 3)] == ["serve", "companion"]


def test_a_server_that_goes_on_needs_no_second_measurement(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    _, paths = written(tmp_path / "run", {"serve": {"keep_running": True}})
    record = submit_stages(paths)
    states = ("COMPLETED", "TIMEOUT", "COMPLETED")
    for job, state in zip(record.stages.values(), states, strict=True):
        fake_slurm.set(job.job_id, state)
    resume_run(paths)
    assert [name for name, _ in new_jobs(fake_slurm, 3)] == ["serve"]


@pytest.mark.parametrize(
    ("states", "words", "hint"),
    [
        (("COMPLETED", "RUNNING", "PENDING"), "is not over: stage serve runs", "trtllm-hpc cancel"),
        (("COMPLETED", "FAILED=1:0", "PENDING"), "is not over: stage companion waits", "trtllm-hpc cancel"),
        (("COMPLETED", "COMPLETED", "COMPLETED"), "nothing to resume", "trtllm-hpc submit"),
    ],
)
def test_a_run_that_lives_or_is_done_is_refused(
    run_of: RunOf, fake_slurm: FakeSlurm, states: tuple[str, ...], words: str, hint: str
) -> None:
    paths = run_of(*states)
    with pytest.raises(SubmissionError, match=words) as refused:
        resume_run(paths)
    assert (refused.value.hint or "").startswith(hint)
    assert len(fake_slurm.jobs) == 3 and not paths.attempts.exists()


@pytest.mark.parametrize("name", ["jobs.json", "events/serve.jsonl"])
def test_a_run_whose_jobs_may_live_is_refused(run_of: RunOf, fake_slurm: FakeSlurm, name: str) -> None:
    paths = run_of(*FAILED)
    leave_traces(paths)
    (paths.folder / name).unlink()
    (paths.folder / name).mkdir()
    with pytest.raises(
        SubmissionError, match=f"{name} of run .* cannot be read, so its jobs may still run: Is a"
    ):
        resume_run(paths)
    assert new_jobs(fake_slurm, 3) == []


def test_what_slurm_refuses_can_be_resumed_once_more(run_of: RunOf, fake_slurm: FakeSlurm) -> None:
    paths = run_of(*FAILED)
    fake_slurm.trouble("sbatch", "sbatch: error: Batch job submission failed: Requested node is down")
    with pytest.raises(SubmissionError):
        resume_run(paths)
    resume_run(paths)
    assert [stage.state for stage in run_status(paths).stages] == ["COMPLETED", "PENDING", "PENDING"]
    assert sorted(it.name for it in paths.attempts.iterdir()) == ["1", "2"]


def test_a_job_that_no_record_names_is_found_in_the_queue(run_of: RunOf, fake_slurm: FakeSlurm) -> None:
    """Its submission was killed just when Slurm took it."""
    paths = run_of(*FAILED)
    job = fake_slurm.add("PENDING")
    fake_slurm.assign(paths, {"serve": job})
    with pytest.raises(SubmissionError, match=f"is not over: job {job} of stage serve is in the queue"):
        resume_run(paths)
    cancel_run(paths)
    assert fake_slurm.state(job).startswith("CANCELLED")
    assert resume_run(paths).complete


def test_one_command_at_a_time(run_of: RunOf, fake_slurm: FakeSlurm) -> None:
    paths = run_of(*FAILED)
    with sole_command(paths), pytest.raises(SubmissionError, match="removes run run right now"):
        resume_run(paths)
    assert not paths.attempts.exists()
    resume_run(paths)


def test_where_files_cannot_be_locked_commands_work(run_of: RunOf, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    paths = run_of(*FAILED)
    assert resume_run(paths).complete
    assert cancel_run(paths).settled


def broken_gpu(paths: RunPaths) -> None:
    """The server's end because of node n2."""
    record = RankRecord("serve", 0, 1, "102", "n2", 1, 0.0, ended_at=9.0, exit_code=1)
    record.write(paths.rank_record("serve", 0))
    paths.rank_log("serve", 0).write_text("RuntimeError: CUDA error: uncorrectable ECC error encountered\n")


def test_a_node_at_fault_is_left_out_and_status_says_so(run_of: RunOf, fake_slurm: FakeSlurm) -> None:
    paths = run_of(*FAILED)
    broken_gpu(paths)
    resume_run(paths)
    jobs = {Path(job["script"]).stem: job["exclude"] for job in list(fake_slurm.jobs.values())[3:]}
    assert jobs == {"serve": "n2", "companion": None}
    [node] = run_status(paths).bad_nodes
    assert (node.node, node.job_id, node.kept) == ("n2", "102", None) and "ECC" in node.why
    assert [event.name for event in read_events(paths, "serve")] == ["bad_node"]


def test_the_last_node_is_never_left_out(run_of: RunOf, fake_slurm: FakeSlurm) -> None:
    paths = run_of(*FAILED)
    broken_gpu(paths)
    for other in ("n1", "n3"):
        fake_slurm.drain(other)
    resume_run(paths)
    assert [job["exclude"] for job in list(fake_slurm.jobs.values())[3:]] == [None, None]
    [node] = run_status(paths).bad_nodes
    assert "0 nodes of the partition" in (node.kept or "")
