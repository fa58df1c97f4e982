"""Three scripts become three chained jobs, or none."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.runs.made import written
from tests.scheduler.fake_slurm import TIMED_OUT, FakeSlurm, after_sbatch
from tests.schemas.check import documented
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode, SubmissionError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.listing import listed_runs
from trtllm_hpc.runs.status import RunState, run_status
from trtllm_hpc.runs.submit import cancel_run, require_scheduler, resume_run, submit_stages
from trtllm_hpc.runtime.records import TOKEN_VARIABLE
from trtllm_hpc.scheduler.submission_record import SubmissionRecord, read_submission


def digests(paths: RunPaths) -> dict[str, str]:
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in paths.scripts.iterdir()}


def test_three_jobs_are_chained(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    _, paths = written(tmp_path / "a run's folder")
    submit_stages(paths)
    record = read_submission(paths)
    assert record is not None and record.complete
    jobs = {stage: job.job_id for stage, job in record.stages.items()}
    assert jobs == {"build": "101", "serve": "102", "companion": "103"}
    assert [job["dependency"] for job in fake_slurm.jobs.values()] == [
        None,
        "afterok:101",
        "after:102,afterok:101",
    ]
    assert [job["kill_on_invalid"] for job in fake_slurm.jobs.values()] == [False, True, True]
    assert [call[-1] for call in fake_slurm.calls()] == [
        str(paths.sbatch(stage)) for stage in ("build", "serve", "companion")
    ]


def test_what_is_submitted_is_what_was_rendered(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    _, paths = written(tmp_path / "run")
    before = digests(paths)
    submit_stages(paths)
    assert digests(paths) == before
    for job in fake_slurm.jobs.values():
        assert job["sha256"] == before[job["script"]]


def test_the_jobs_get_the_token_of_the_submission_and_no_options_from_the_environment(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    monkeypatch.setenv("MINE", "kept")
    conf = tmp_path / "sandbox.conf"
    conf.touch()
    _, paths = written(tmp_path / "run", slurm_conf=str(conf))
    record = submit_stages(paths)
    for job in fake_slurm.jobs.values():
        environment = job["environment"]
        assert environment[TOKEN_VARIABLE] == record.token
        assert environment["SLURM_CONF"] == str(conf)
        assert environment["MINE"] == "kept"
        assert [name for name in environment if name.startswith("SBATCH_")] == []


def test_every_command_asks_the_cluster_that_has_the_jobs(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    """Where one login node serves several clusters, the same number is a job of each."""
    fake_slurm.configure(next_id=500)
    _, paths = written(tmp_path / "run", slurm_cluster="second")
    record = submit_stages(paths)
    jobs = [job.job_id for job in record.stages.values()]
    assert jobs == ["500", "501", "502"]  # sbatch prints 500;second
    assert "#SBATCH --clusters=second\n" in paths.sbatch("serve").read_text()
    assert fake_slurm.jobs["502"]["dependency"] == "after:501,afterok:500"
    for job in jobs[:2]:
        fake_slurm.set(job, "RUNNING")
    assert [stage.state for stage in run_status(paths).stages] == ["RUNNING", "RUNNING", "PENDING"]
    assert [it.state for it in listed_runs(tmp_path)] == [RunState.RUNNING]
    assert cancel_run(paths).state is RunState.CANCELLED
    again = resume_run(paths)
    assert [job.job_id for job in again.stages.values()] == ["503", "504", "505"]
    assert {call[1] for call in fake_slurm.calls()} == {"--clusters=second"}


@pytest.mark.parametrize(
    ("profile", "words", "remedy"),
    [
        ({"partition": "gpuu"}, "Invalid partition name specified", "set partition in the cluster profile"),
        ({"account": "theirs"}, "Invalid account or account/partition", "set account in the cluster profile"),
    ],
)
def test_a_refusal_shows_slurms_message_and_a_remedy(
    fake_slurm: FakeSlurm, tmp_path: Path, profile: dict[str, Any], words: str, remedy: str
) -> None:
    _, paths = written(tmp_path / "run", **profile)
    with pytest.raises(SubmissionError) as caught:
        submit_stages(paths)
    assert words in caught.value.message and str(paths.sbatch("build")) in caught.value.message
    assert caught.value.hint is not None and remedy in caught.value.hint


def test_a_refusal_halfway_cancels_the_submitted_jobs(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    _, paths = written(tmp_path / "run", companion_partition="no-such")
    with pytest.raises(SubmissionError, match="Invalid partition name"):
        submit_stages(paths)
    assert [job["state"] for job in fake_slurm.jobs.values()] == ["CANCELLED by 1000"] * 2
    record = read_submission(paths)
    assert record is not None and not record.complete
    status = run_status(paths)
    assert (status.state.value, status.exit_code) == ("failed", ExitCode.SUBMISSION)
    assert "stage companion was not submitted" in status.sentence and "Invalid partition" in status.sentence


def test_a_failing_scancel_hides_neither_the_cause_nor_the_other_jobs(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    _, paths = written(tmp_path / "run", companion_partition="no-such")
    fake_slurm.trouble("scancel", "scancel: error: Socket timed out on send/recv operation")
    with pytest.raises(SubmissionError, match="Invalid partition name"):
        submit_stages(paths)
    assert fake_slurm.state("101") == "CANCELLED by 1000"


@pytest.mark.parametrize(
    ("line", "without"),
    [
        (TIMED_OUT, "--none=*"),
        ("kill -9 $$", "--none=*"),
        ("echo '7 GPU hours are left'; exit 0", "--none=*"),
        ("echo $said; echo the accounting of the site is away >&2; exit 1", "--none=*"),
        ("echo $said; echo '7 GPU hours are left'; exit 0", "--none=*"),
        ('echo "$said (project 7)"; exit 0', "--none=*"),
        ("echo $said; echo 7; exit 0", "--none=*"),  # of the GPU hours that are left
        (TIMED_OUT, "--comment=*"),  # as a site that overwrites comments
    ],
)
def test_a_job_that_slurm_took_is_found_after_an_unclear_answer(
    fake_slurm: FakeSlurm, tmp_path: Path, line: str, without: str
) -> None:
    _, paths = written(tmp_path / "run")
    after_sbatch(fake_slurm, line, without=without)
    record = submit_stages(paths)
    assert [it.job_id for it in record.stages.values()] == ["101", "102", "103"] == [*fake_slurm.jobs]
    assert record.complete and run_status(paths).state is RunState.PENDING


def test_the_token_goes_into_the_name_of_a_job_with_a_comment(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    _, paths = written(tmp_path / "run", sbatch_options=["--comment=project 7"])
    after_sbatch(fake_slurm, TIMED_OUT)
    token = submit_stages(paths).token
    jobs = list(fake_slurm.jobs.values())
    assert [it["name"] for it in jobs] == [
        f"demo-{stage}:{token}" for stage in ("build", "serve", "companion")
    ]
    assert {it["comment"] for it in jobs} == {"project 7"}


def test_a_wrapper_that_tries_again_leaves_no_second_job(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    _, paths = written(tmp_path / "run", {"engine": {"directory": "/engines/a"}}, companion="overlap")
    sbatch = fake_slurm.bin / "sbatch"
    once = sbatch.read_text().splitlines()[1].removeprefix("exec ")
    sbatch.write_text(f"#!/bin/bash\n{once} > /dev/null\necho 'Socket timed out' >&2\n{once}\n")
    assert submit_stages(paths).stages["serve"].job_id == "102"
    assert fake_slurm.state("101").startswith("CANCELLED") and fake_slurm.state("102") == "PENDING"


def test_a_job_that_appears_late_is_seen_and_cancelled(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtllm_hpc.runtime.submission.LOOKUP_S", 0.0)
    _, paths = written(tmp_path / "run")
    after_sbatch(fake_slurm, TIMED_OUT)
    squeue = (fake_slurm.bin / "squeue").read_text()
    (fake_slurm.bin / "squeue").write_text("#!/bin/sh\n")
    with pytest.raises(SubmissionError, match="It is not clear whether Slurm has taken") as caught:
        submit_stages(paths)
    assert "Socket timed out" in caught.value.message
    assert f"trtllm-hpc cancel {paths.folder}" in (caught.value.hint or "")
    assert "not clear" in run_status(paths).sentence
    (fake_slurm.bin / "squeue").write_text(squeue)
    build = run_status(paths).stages[0]
    assert (build.job_id, build.state) == (
        "101",
        "PENDING",
    ) and "will do nothing when it starts" in build.sentence
    with pytest.raises(SubmissionError, match="is not over"):
        resume_run(paths)
    assert cancel_run(paths).stages[0].state == "CANCELLED" == fake_slurm.state("101").split()[0]


@pytest.mark.parametrize("known_by", ["script", "comment"])
def test_a_job_whose_submit_was_killed_before_the_record_is_seen_and_cancelled(
    fake_slurm: FakeSlurm, tmp_path: Path, known_by: str
) -> None:
    _, paths = written(tmp_path / "run")
    record = SubmissionRecord(scheduler="slurm")
    record.write(paths)
    facts = {"script": str(paths.sbatch("build")), "comment": ""}
    if known_by == "comment":  # the site's sbatch submits a copy of the script
        facts = {"script": "/spool/7", "comment": f"site:x trtllm-hpc:build:{record.token}"}
    job = fake_slurm.add("PENDING", name="demo-build", output=str(paths.batch_log("build")), **facts)
    [row] = listed_runs(tmp_path, warn=pytest.fail)
    assert row.live and run_status(paths).stages[0].job_id == job
    cancel_run(paths)
    assert fake_slurm.state(job).startswith("CANCELLED")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("slurm_load: Unable to contact slurm controller (connect failure)", "is the controller up"),
        (
            "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates "
            "accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "for the limit AssocMaxSubmitJobLimit",
        ),
        (
            "sbatch: error: QOSMaxGRESPerUser\nsbatch: error: Job violates accounting/QOS policy",
            "squeue --me, and",
        ),
    ],
)
def test_a_clear_refusal_searches_no_queue_and_has_its_own_hint(
    fake_slurm: FakeSlurm, tmp_path: Path, words: str, hint: str
) -> None:
    _, paths = written(tmp_path / "run")
    fake_slurm.trouble("sbatch", words)
    with pytest.raises(SubmissionError) as caught:
        submit_stages(paths)
    assert hint in (caught.value.hint or "") and "account in the" not in (caught.value.hint or "")
    assert not fake_slurm.calls("squeue")


def test_a_refused_companion_is_named_with_the_limit_though_its_server_had_begun(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    _, paths = written(tmp_path / "run", {"engine": {"directory": "/engines/a"}})
    fake_slurm.trouble("sbatch", None)
    fake_slurm.trouble(
        "sbatch", "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed"
    )
    with pytest.raises(SubmissionError):
        submit_stages(paths)
    fake_slurm.set("101", "CANCELLED", started="1790000000", ends="1790000009")
    status = run_status(paths)
    assert status.exit_code == ExitCode.SUBMISSION and status.state is RunState.FAILED
    assert "stage companion was not submitted" in status.sentence and "AssocMaxSubmitJob" in status.sentence
    assert "squeue --me" in status.causes[0].next


def test_a_federation_names_its_cluster_behind_the_id(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    _, paths = written(tmp_path / "run")
    (fake_slurm.bin / "sbatch").write_text("#!/bin/sh\necho a word from the site\necho '77;east'\n")
    assert submit_stages(paths).stages["serve"].job_id == "77"


def test_what_cannot_be_submitted_from_here_is_refused_before_anything_is_written(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = written(tmp_path / "run", slurm_conf=str(tmp_path / "no such.conf"))
    with pytest.raises(SubmissionError, match="which cannot be read"):
        require_scheduler(plan.cluster)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SubmissionError, match="this machine has no sbatch"):
        require_scheduler(plan.cluster)


# Interruptions --------------------------------------------------------------------------


def start_submit(folder: Path, *options: str) -> subprocess.Popen[str]:
    (folder / "job.yaml").write_text("name: demo\n")
    (folder / "here.yaml").write_text("name: here\npartition: batch\nnode_local_folders: []\n")
    words = [sys.executable, "-m", "trtllm_hpc", "submit", "job.yaml", "--cluster", "./here.yaml", *options]
    return subprocess.Popen(
        words,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        preexec_fn=hear_hangups,
    )


def hear_hangups() -> None:
    """As in a terminal: what nohup started the tests with is inherited, and heeded by ``submit``."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def hold_back_answers(fake_slurm: FakeSlurm, after: int) -> Path:
    """Let sbatch answer only ``after`` times, and then when the file is there whose path is returned."""
    gate, answers = fake_slurm.folder / "gate", fake_slurm.folder / "answers"
    sbatch = fake_slurm.bin / "sbatch"
    asks = sbatch.read_text().replace("exec ", "")
    waits = f"while [ $(wc -l < '{answers}') -gt {after} ] && [ ! -e '{gate}' ]; do sleep 0.02; done"
    sbatch.write_text(f"{asks}code=$?\necho >> '{answers}'\n{waits}\nexit $code\n")
    return gate


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_cancels_the_submitted_jobs(
    fake_slurm: FakeSlurm, tmp_path: Path, number: signal.Signals
) -> None:
    """The signal comes while the second sbatch has been taken by Slurm, but has not answered yet."""
    gate = hold_back_answers(fake_slurm, after=1)
    process = start_submit(tmp_path)
    assert eventually(lambda: len(fake_slurm.calls("sbatch")) == 2)
    process.send_signal(number)
    gate.touch()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in errors and "Interrupted" in errors
    assert [job["state"] for job in fake_slurm.jobs.values()] == ["CANCELLED by 1000"] * 2
    [run] = (tmp_path / "runs").iterdir()
    assert run_status(RunPaths(run)).exit_code == ExitCode.CANCELLED


def test_cancel_stops_a_submission_that_is_going_on(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    """Its second sbatch has been taken by Slurm, but has not answered yet."""
    gate = hold_back_answers(fake_slurm, after=1)
    process = start_submit(tmp_path)
    assert eventually(lambda: len(fake_slurm.calls("sbatch")) == 2)
    [run] = map(RunPaths, (tmp_path / "runs").iterdir())
    words = [sys.executable, "-m", "trtllm_hpc", "cancel", str(run.folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as cancels:
        assert eventually(run.stop_request.exists) and cancels.poll() is None
        gate.touch()
        _, errors = process.communicate(timeout=60)
        output, _ = cancels.communicate(timeout=60)
    assert process.returncode == ExitCode.SUBMISSION
    assert f"Run {run.run_id} was cancelled while it was submitted" in errors
    assert cancels.returncode == 0 and output.startswith(f"{run.run_id}: cancelled")
    assert [job["state"] for job in fake_slurm.jobs.values()] == ["CANCELLED by 1000"] * 2
    assert [stage.state for stage in run_status(run).stages] == ["CANCELLED"] * 3


def test_a_run_that_is_cancelled_before_its_first_job_is_not_submitted(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    _, paths = written(tmp_path / "run")
    cancel_run(paths)
    with pytest.raises(SubmissionError, match="was cancelled while it was submitted"):
        submit_stages(paths)
    assert fake_slurm.jobs == {} and cancel_run(paths).state is RunState.CANCELLED
    assert resume_run(paths).complete


def before_each(fake_slurm: FakeSlurm, command: str, line: str) -> None:
    """Let something happen whenever this command of Slurm's is called."""
    script = fake_slurm.bin / command
    script.write_text(script.read_text().replace("exec ", f"{line}\nexec "))


def test_a_removed_run_folder_is_no_success_and_ends_the_jobs(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    before_each(fake_slurm, "squeue", f"rm -rf '{tmp_path}'/runs/*")
    output, errors = start_submit(tmp_path, "--wait").communicate(timeout=60)
    assert "serve: job 102" in output
    assert "lost: nothing is known about its jobs" in errors and "its jobs were cancelled" in errors, errors
    assert "next: submit the job file again" in errors
    assert [job["state"] for job in fake_slurm.jobs.values()] == ["CANCELLED by 1000"] * 3


def test_a_question_that_slurm_refuses_is_no_reason_to_submit_again(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    fake_slurm.trouble("squeue", "squeue: error: Access/permission denied")
    process = start_submit(tmp_path, "--wait")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitCode.SUBMISSION
    assert "do not submit again: trtllm-hpc watch demo-" in errors, errors


def test_without_wait_the_ids_are_printed_and_that_is_all(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    process = start_submit(tmp_path, "--json")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert documented("submit", output)["jobs"] == {"build": "101", "serve": "102", "companion": "103"}
    assert [call[0] for call in fake_slurm.calls()] == ["sinfo", "scontrol", *["sbatch"] * 3]


@pytest.mark.parametrize(
    ("limits", "setting", "words"),
    [
        (
            {"TotalNodes": 1},
            "serve.nodes=2",
            "requests 2 nodes, but the partition 'batch' allows a job at most",
        ),
        (
            {"MaxTime": "00:30:00"},
            "serve.nodes=1",
            "60 minutes, but the partition 'batch' allows 30",
        ),
    ],
)
def test_what_would_wait_for_ever_is_not_submitted(
    fake_slurm: FakeSlurm, tmp_path: Path, limits: dict[str, Any], setting: str, words: str
) -> None:
    fake_slurm.limit("batch", **limits)
    more = ("--set", setting, "--set", "engine.tensor_parallel=2", "--set", "cluster.gpus_per_node=2")
    process = start_submit(tmp_path, *more)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitCode.CONFIG and words in errors, errors
    assert "--ignore partition-limits" in errors
    assert fake_slurm.calls("sbatch") == []


def test_a_submission_that_ended_before_its_first_job_is_over(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    """Refused outright, and killed before a word: neither may be pending for ever."""
    fake_slurm.trouble("sbatch", "Batch job submission failed: Invalid partition name specified")
    _, refused = written(tmp_path / "refused")
    with pytest.raises(SubmissionError):
        submit_stages(refused)
    assert run_status(refused).exit_code == ExitCode.SUBMISSION
    _, killed = written(tmp_path / "killed")
    SubmissionRecord(scheduler="slurm").write(killed)
    assert run_status(killed).state is RunState.PENDING  # it may be at it right now
    long_ago = time.time() - 3600
    os.utime(killed.jobs, (long_ago, long_ago))
    status = run_status(killed)
    assert status.settled and status.exit_code == ExitCode.SUBMISSION
