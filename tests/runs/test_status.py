"""What a run is said to be, for what Slurm and the job itself say."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.logs.runs import add_rank
from tests.runs.conftest import RunOf
from tests.runs.made import run_with, submitted, written
from tests.scheduler.fake_slurm import CONTROLLER_GONE, FakeSlurm
from trtllm_hpc.api.run import Run
from trtllm_hpc.cli import command as main
from trtllm_hpc.errors import ExitCode, StartFailed, SubmissionError
from trtllm_hpc.logs.snapshot import RunSnapshot, readable_plan
from trtllm_hpc.paths import RunPaths, write_json
from trtllm_hpc.runs.endpoint import endpoint_of
from trtllm_hpc.runs.find import find_run
from trtllm_hpc.runs.status import RunState, job_ids, run_status
from trtllm_hpc.runs.submit import cancel_run
from trtllm_hpc.runtime import checks
from trtllm_hpc.runtime.heartbeat import Heartbeat
from trtllm_hpc.runtime.records import Endpoint, add_event
from trtllm_hpc.scheduler.slurm import Slurm as Commands


def publish(paths: RunPaths) -> None:
    Endpoint("102", "n1", "10.0.0.1", 8, 9, 10, ["ensemble"], 5.0).write(paths.endpoint)


PENDING, RUNNING, FAILED = RunState.PENDING, RunState.RUNNING, RunState.FAILED
OK, BUILD, START = ExitCode.OK, ExitCode.BUILD, ExitCode.START


@pytest.mark.parametrize(
    ("why", "at", "state"),
    [
        ("Prolog error", "1005", FAILED),
        ("Prolog error", "5000", RunState.CANCELLED),  # of a later job
        ("new disk", "1005", RunState.CANCELLED),
    ],
)
@pytest.mark.parametrize("accounting", [True, False])
def test_a_failed_prolog_is_not_a_cancellation_and_ends_the_companion_s_wait(
    run_of: RunOf,
    fake_slurm: FakeSlurm,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
    at: str,
    state: RunState,
    accounting: bool,
) -> None:
    paths = run_of("COMPLETED", "CANCELLED", "RUNNING")
    fake_slurm.configure(accounting=accounting)
    fake_slurm.set("102", "CANCELLED", nodes="n[1-2]", started="1000", ends="1006")
    fake_slurm.drain("n2", why, at)
    status = run_status(paths)
    assert status.state is state
    if state is FAILED:
        assert status.sentence == "stage serve was ended: the site's prolog failed on n2"
        assert (status.exit_code, status.causes[0].id) == (START, "slurm-prolog")
        monkeypatch.setenv("TRTLLM_HPC_JOB_ID", "103")
        with pytest.raises(StartFailed, match="the site's prolog failed on n2"):
            endpoint_of(paths, 60.0)


@pytest.mark.parametrize(
    ("jobs", "state", "code", "words"),
    [
        ("PENDING PENDING PENDING", PENDING, OK, "stage build waits in the queue"),
        ("CONFIGURING PENDING PENDING", PENDING, OK, "stage build has its nodes"),
        ("RUNNING PENDING PENDING", RUNNING, OK, "stage build runs"),
        ("COMPLETED PENDING PENDING", RUNNING, OK, "stage serve waits in the queue"),
        ("COMPLETED RUNNING RUNNING", RUNNING, OK, "stage serve runs"),
        ("COMPLETED COMPLETING COMPLETED", RUNNING, OK, "stage serve has ended; its processes"),
        ("COMPLETED COMPLETED COMPLETED", RunState.COMPLETED, OK, "every stage has completed"),
        ("FAILED=1:0 CANCELLED CANCELLED", FAILED, BUILD, "build has failed (exit code 1)"),
        (
            "OUT_OF_MEMORY=0:125 CANCELLED CANCELLED",
            FAILED,
            BUILD,
            "build used more memory than it requested",
        ),
        ("COMPLETED FAILED=0:9 FAILED=143:0", FAILED, START, "(its batch script was killed by signal 9)"),
        ("COMPLETED FAILED=8:0 FAILED=8:0", FAILED, ExitCode.READINESS, "serve has failed (exit code 8)"),
        ("COMPLETED TIMEOUT RUNNING", FAILED, START, "stage serve ran into its time limit"),
        ("COMPLETED COMPLETED FAILED=9:0", FAILED, ExitCode.REQUEST, "companion has failed (exit code 9)"),
        (
            "COMPLETED COMPLETED FAILED=10:0",
            FAILED,
            ExitCode.MEASUREMENT,
            "companion has failed (exit code 10)",
        ),
        ("COMPLETED COMPLETED FAILED=3:0", FAILED, ExitCode.CONFIG, "companion has failed (exit code 3)"),
        ("COMPLETED FAILED=3:0 CANCELLED", FAILED, START, "stage serve has failed (exit code 3)"),
        ("COMPLETED COMPLETED FAILED=1:0", FAILED, ExitCode.REQUEST, "companion has failed (exit code 1)"),
        ("COMPLETED CANCELLED CANCELLED", RunState.CANCELLED, ExitCode.CANCELLED, "serve was cancelled"),
        ("COMPLETED NODE_FAIL CANCELLED", FAILED, START, "stage serve lost a node"),
        ("COMPLETED TELEPORTING PENDING", RUNNING, OK, "in a state unknown here: 'TELEPORTING'"),
    ],
)
def test_states_of_three_jobs_become_one(
    run_of: RunOf, jobs: str, state: RunState, code: ExitCode, words: str
) -> None:
    status = run_status(run_of(*jobs.split()))
    assert (status.state, status.exit_code) == (state, code), status
    assert words in status.sentence


@pytest.mark.parametrize(("serve", "stays"), [("COMPLETING", True), ("COMPLETED", False)])
def test_what_a_killed_companion_was_writing_goes_when_every_job_has_ended(
    run_of: RunOf, serve: str, stays: bool
) -> None:
    paths = run_of("COMPLETED", serve, "FAILED=9:0")
    left = paths.results / ".progress.json.103.abcdefgh.aside"
    left.touch()
    run_status(paths)
    assert left.exists() is stays


def test_the_status_of_a_rendered_run_queries_the_queue_once(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    _, paths = written(tmp_path / "run")
    status = run_status(paths)
    assert (status.state, status.sentence) == (RunState.RENDERED, "not submitted")
    assert [stage.state for stage in status.stages] == ["NOT SUBMITTED"] * 3
    # A person may have submitted its scripts by hand.
    assert [call[0] for call in fake_slurm.calls()] == ["squeue"]


def test_scripts_submitted_by_hand_are_found_in_the_queue(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    plan, paths = written(tmp_path / "run")
    job = Commands(plan.cluster.slurm_conf).submit(paths.sbatch("build"))
    stages = {stage.stage: stage for stage in run_status(paths).stages}
    assert (stages["build"].job_id, stages["build"].state) == (job, "PENDING")
    assert stages["serve"].state == "NOT SUBMITTED"
    cancel_run(paths)
    assert fake_slurm.state(job).startswith("CANCELLED")


def test_the_pending_reason_is_explained(run_of: RunOf, fake_slurm: FakeSlurm) -> None:
    paths = run_of("PENDING", "PENDING", "PENDING")
    start = int(time.time()) + 90_000
    fake_slurm.set("101", "PENDING", reason="PartitionTimeLimit", started=start)
    build, serve, _ = run_status(paths).stages
    assert "lower time_limit_minutes" in build.sentence and build.times.expected_at == start
    assert serve.sentence == "waits in the queue: an earlier stage must come first"


@pytest.mark.parametrize(
    ("companion", "code", "words"),
    [
        ("FAILED=9:0", ExitCode.REQUEST, "stage companion has failed (exit code 9)"),
        ("FAILED=10:0", ExitCode.MEASUREMENT, "stage companion has failed (exit code 10)"),
        ("CANCELLED", ExitCode.CANCELLED, "stage companion was cancelled"),
        ("COMPLETED", OK, "stage serve runs"),
    ],
)
@pytest.mark.parametrize("kept", [True, False])
def test_a_server_kept_running_outlives_its_companion(
    run_of: RunOf, companion: str, code: ExitCode, words: str, kept: bool
) -> None:
    paths = run_of("COMPLETED", "RUNNING", companion)
    replace(readable_plan(paths), stops_server=not kept).write(paths)
    publish(paths)
    status = run_status(paths)
    assert status.exit_code == code and words in status.sentence
    serves = kept or companion == "COMPLETED"
    assert (status.state is RunState.SERVING) == (status.endpoint is not None) == serves
    assert ("the server goes on" in status.sentence) == (kept and code != OK)


def test_the_endpoint_file_of_a_killed_leader_is_ignored(run_of: RunOf) -> None:
    paths = run_of("COMPLETED", "FAILED=0:9", "CANCELLED")
    publish(paths)
    status = run_status(paths)
    assert (status.state, status.endpoint) == (RunState.FAILED, None)


def test_a_companion_that_ends_with_the_servers_code_is_not_blamed(run_of: RunOf) -> None:
    """It has a job of its own, notices that there will be no server, and passes the exit code on."""
    paths = run_of("COMPLETED", "FAILED=7:0", "FAILED=7:0")
    add_event(paths, "serve", "stage_begin", job_id="102")
    add_event(paths, "companion", "stage_end", exit_code=7, job_id="103")
    add_event(paths, "serve", "preflight_failed", reason="the world has 1 rank, but the plan says 2")
    assert run_status(paths).sentence.endswith("the world has 1 rank, but the plan says 2")


# What Slurm has forgotten ---------------------------------------------------------------


def test_a_companion_in_the_servers_job_shows_what_failed(run_of: RunOf) -> None:
    paths = run_of("COMPLETED", "FAILED=3:0", "CANCELLED")
    add_event(paths, "serve", "stage_begin", job_id="102")
    add_event(paths, "companion", "stage_end", exit_code=3, job_id="102")
    assert run_status(paths).exit_code == ExitCode.CONFIG


def forgotten(fake_slurm: FakeSlurm, folder: Path) -> RunPaths:
    paths = run_with(fake_slurm, folder, "COMPLETED", "COMPLETED", "COMPLETED")
    for job in fake_slurm.jobs:
        fake_slurm.forget(job)
    return paths


def test_a_jobs_own_last_event_counts_when_slurm_has_forgotten_it(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    paths = forgotten(fake_slurm, tmp_path / "run")
    for stage in ("build", "serve"):
        add_event(paths, stage, "stage_begin")
        add_event(paths, stage, "stage_end", exit_code=0)
    add_event(paths, "companion", "stage_end", exit_code=10)
    status = run_status(paths)
    assert (status.state, status.exit_code) == (RunState.FAILED, ExitCode.MEASUREMENT)
    assert [stage.state for stage in status.stages] == ["COMPLETED", "COMPLETED", "FAILED"]


def test_a_job_that_vanished_without_an_event_is_lost_and_never_completed(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    paths = forgotten(fake_slurm, tmp_path / "run")
    for stage in ("build", "companion"):
        add_event(paths, stage, "stage_end", exit_code=0)
    add_event(paths, "serve", "stage_begin", job_id="102")
    status = run_status(paths)
    assert (status.state, status.exit_code) == (RunState.LOST, ExitCode.LOST)
    assert "serve is known to neither squeue, sacct nor scontrol" in status.sentence


# Interrupted, by hand, broken -----------------------------------------------------------


def test_a_submit_that_was_killed_is_interrupted(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    build = fake_slurm.add("FAILED", exit="5:0", nodes="n1")
    paths = submitted(tmp_path / "run", {"build": build}, complete=False)
    fake_slurm.assign(paths, {"build": build})
    add_event(paths, "build", "submission_interrupted")
    status = run_status(paths)
    assert (status.state, status.exit_code) == (RunState.FAILED, ExitCode.SUBMISSION)
    assert [stage.state for stage in status.stages] == ["FAILED", "INTERRUPTED", "INTERRUPTED"]
    assert status.settled


def test_a_stage_that_was_run_again_counts_under_its_newest_id(run_of: RunOf, fake_slurm: FakeSlurm) -> None:
    paths = run_of("COMPLETED", "FAILED=7:0", "COMPLETED")
    again = fake_slurm.add("COMPLETED", exit="0:0", nodes="n1")
    fake_slurm.assign(paths, {"serve": again})
    add_event(paths, "serve", "stage_begin", job_id="102")
    add_event(paths, "serve", "stage_begin", job_id=again)
    assert run_status(paths).state is RunState.COMPLETED


def test_a_script_without_a_job_leaves_its_stage_to_the_submission(run_of: RunOf) -> None:
    run = run_of("COMPLETED", "RUNNING", "PENDING")
    submitted_as = job_ids(RunSnapshot(run))["serve"]
    for job_id in ("31", ""):  # a person has submitted it again, and then run it in a shell
        add_event(run, "serve", "stage_begin", job_id=job_id)
    assert job_ids(RunSnapshot(run))["serve"] == submitted_as


def test_a_local_run_started_by_hand_does_not_query_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``bash scripts/build.sbatch``, as ``render`` says, on a machine without Slurm."""
    _, paths = written(tmp_path / "run", scheduler="local")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_status(paths).state is RunState.RENDERED
    add_event(paths, "build", "stage_begin", job_id="local77")
    status = run_status(paths)
    assert [stage.state for stage in status.stages] == ["RUNNING", "NOT SUBMITTED", "NOT SUBMITTED"]
    add_event(paths, "build", "stage_end", exit_code=1)
    status = run_status(paths)
    assert (status.state, status.exit_code) == (RunState.FAILED, ExitCode.BUILD)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"scheduler": "slurm", "stages": {"build": {}}}'])
def test_a_damaged_submission_record_is_ignored(run_of: RunOf, content: str) -> None:
    paths = run_of("RUNNING", "PENDING", "PENDING")
    paths.jobs.write_text(content)
    assert run_status(paths).state is RunState.RUNNING, "Slurm knows which scripts its jobs run"


@pytest.mark.parametrize(
    ("code", "logged", "note"),
    [
        (9, "Killed", "its script was killed by signal 9, SIGKILL"),
        (11, "Segmentation fault (core dumped)", "its script was killed by signal 11, SIGSEGV"),
        (9, "Exited with exit code 9", "exit code 9"),
        (1, "Exited with exit code 1", "exit code 1"),
        (2, None, "exit code 2"),
        (7, None, "exit code 7"),
    ],
)
def test_only_srun_knows_whether_a_signal_killed_a_script_that_recorded_no_end(
    fake_slurm: FakeSlurm, tmp_path: Path, code: int, logged: str | None, note: str
) -> None:
    """srun exits with 9 for a task that SIGKILL ended; a companion's own exit code may be 9, too."""
    jobs = {
        "serve": fake_slurm.add("COMPLETED", nodes="n1"),
        "companion": fake_slurm.add("FAILED", exit=f"{code}:0", nodes="n1"),
    }
    paths = submitted(tmp_path / "demo-1", jobs)
    fake_slurm.assign(paths, jobs)
    add_event(paths, "companion", "stage_begin", job_id=jobs["companion"])
    if logged is not None:
        paths.batch_log("companion").write_text(f"srun: error: n1: task 0: {logged}\nlater\n")
    assert f"companion has failed ({note})" in run_status(paths).sentence
    add_event(paths, "companion", "stage_end", job_id=jobs["companion"], exit_code=code)
    assert f"companion has failed (exit code {code})" in run_status(paths).sentence


@pytest.mark.parametrize(("ended", "note"), [("COMPLETED", ""), ("FAILED=3:0", " (exit code 3)")])
def test_a_script_that_never_began_has_not_completed(run_of: RunOf, ended: str, note: str) -> None:
    """A file that bash reads before the script, as BASH_ENV names it, has ended bash."""
    paths = run_of("COMPLETED", ended, "COMPLETED")
    paths.batch_log("serve").touch()
    status = run_status(paths)
    assert (status.state, status.exit_code) == (FAILED, START)
    assert f"stage serve has failed{note}: its script never began, as if a file that" in status.sentence
    # A script that fails writes an error, for which a full disk has no room.
    assert ("file system is or was full" in status.sentence) is bool(note)
    job = json.loads(paths.jobs.read_text())["stages"]["serve"]["job_id"]
    add_event(paths, "serve", "stage_end", job_id=job, exit_code=3)
    assert "never began" not in run_status(paths).sentence


def test_the_recorded_exit_code_goes_before_slurms(run_of: RunOf) -> None:
    """sacct of Slurm 22.05 shows the exit code 137 as 9, which means something else here."""
    paths = run_of("COMPLETED", "FAILED=9:0", "COMPLETED")
    job = json.loads(paths.jobs.read_text())["stages"]["serve"]["job_id"]
    add_event(paths, "serve", "stage_begin", job_id=job)
    add_event(paths, "serve", "stage_end", job_id=job, exit_code=137)
    status = run_status(paths)
    assert status.exit_code == ExitCode.START
    assert "exit code 137, as after SIGKILL" in status.stages[1].sentence


def test_a_rendered_run_without_a_reachable_slurm_is_one_sentence_and_a_next_command(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    _, paths = written(tmp_path / "run")
    fake_slurm.trouble("squeue", "squeue: fatal: Could not establish a configuration source")
    with pytest.raises(SubmissionError) as caught:
        run_status(paths)
    assert caught.value.message.startswith("Run run is rendered.") and "\n" not in caught.value.message
    assert caught.value.hint is not None and "login node" in caught.value.hint


LOST = "rank 1 on n1: it has given no sign of life for 45 s: its node may be lost, or stopped"


@pytest.mark.parametrize("serve", ["RUNNING", "COMPLETING"])
def test_a_lost_server_is_named_before_slurm_knows_and_not_the_companion(run_of: RunOf, serve: str) -> None:
    paths = run_of("COMPLETED", serve, "FAILED=130:0")
    add_rank(paths, 0, ended_at=65.0, exit_code=-9, stopped_by="heartbeat", reason=LOST, blames=1)
    add_rank(paths, 1)
    assert "companion" in run_status(paths).sentence, "the supervisor may start it again"
    add_event(paths, "serve", "failed", reason=LOST)
    status = run_status(paths)
    assert (status.state, status.exit_code) == (FAILED, START)
    assert status.sentence == (
        f"stage serve has lost its server, and Slurm has not ended its job yet; {LOST}"
    )
    assert status.causes[0].sentence == f"R{LOST[1:]}."


@pytest.mark.parametrize("serve", ["PENDING", "CANCELLED"])
def test_a_requeued_server_is_named_and_not_the_companion_that_lost_it(run_of: RunOf, serve: str) -> None:
    """Also once `submit --wait` has cancelled the job that waits again."""
    paths = run_of("COMPLETED", serve, "FAILED=9:0")
    assert "companion" in run_status(paths).sentence
    add_event(paths, "serve", "stage_begin", job_id="102")
    line = "slurmstepd: error: *** JOB 102 ON n1 CANCELLED AT 2026-11-23T10:00:00 DUE TO JOB REQUEUE ***\n"
    paths.batch_log("serve").write_text(line)
    status = run_status(paths)
    assert (status.state, status.exit_code) == (FAILED, START)
    assert status.sentence == "stage serve was put back into the queue by Slurm, which ended its server"
    assert status.causes[0].id == "slurm-requeued"


@pytest.mark.parametrize(("serve_s", "state"), [(5, RunState.CANCELLED), (15, FAILED)])
def test_a_companion_that_fails_after_its_server_was_cancelled_is_not_blamed(
    run_of: RunOf, serve_s: int, state: RunState
) -> None:
    """One that has failed before somebody cancelled the server is."""
    paths = run_of("COMPLETED", "CANCELLED", "FAILED=9:0")
    now = time.time()
    for stage, end_s, code in (("serve", serve_s, 143), ("companion", 10, 9)):
        job_id = str(json.loads(paths.jobs.read_text())["stages"][stage]["job_id"])
        begin = {"time": now, "stage": stage, "name": "stage_begin", "data": {"job_id": job_id}}
        ended = {"job_id": job_id, "exit_code": code}
        end = {"time": now + end_s, "stage": stage, "name": "stage_end", "data": ended}
        paths.stage_events(stage).write_text(f"{json.dumps(begin)}\n{json.dumps(end)}\n")
    status = run_status(paths)
    blamed = "serve was cancelled" if state is RunState.CANCELLED else "companion has failed"
    assert status.state is state and f"stage {blamed}" in status.sentence, status


def test_a_lost_node_is_named(run_of: RunOf) -> None:
    paths = run_of("COMPLETED", "NODE_FAIL=1:0", "CANCELLED")
    paths.batch_log("serve").write_text("ready\nsrun: error: Node failure on n7\nsrun: got SIGCONT\n")
    assert "stage serve lost a node: n7" in run_status(paths).sentence


def test_a_full_disk_under_a_living_run_is_told(run_of: RunOf, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = run_of("COMPLETED", "RUNNING", "RUNNING")
    assert "MiB free" not in run_status(paths).sentence
    monkeypatch.setattr(checks, "free_space", lambda _: (0.0, 10**6))
    assert "0.0 MiB free" in run_status(paths).sentence


@pytest.mark.parametrize("damaged", ["plan.json", "runtime.pyz", "scripts", "logs", "events", "ranks"])
@pytest.mark.parametrize("state", ["RUNNING", "FAILED=7:0"])
def test_what_is_left_of_a_damaged_run_folder_is_shown_and_its_jobs_can_be_cancelled(
    run_of: RunOf, fake_slurm: FakeSlurm, damaged: str, state: str
) -> None:
    paths = run_of("COMPLETED", state, "PENDING")
    jobs = [job["job_id"] for job in json.loads(paths.jobs.read_text())["stages"].values()]
    lost = paths.folder / damaged
    if lost.is_dir():
        shutil.rmtree(lost)
    else:
        lost.unlink()
    status = run_status(find_run(str(paths.folder), paths.folder.parent))
    assert [stage.job_id for stage in status.stages] == jobs
    if state == "RUNNING" or damaged == "plan.json":
        assert f"the run folder lacks {damaged}" in status.sentence
    cancel_run(paths)
    assert all(stage.final for stage in run_status(paths).stages)


@pytest.mark.parametrize("file", ["jobs.json", "instances.json", "endpoint.json"])
@pytest.mark.parametrize("content", ["", '{"stages"', "[1, 2]"])
def test_a_damaged_record_is_named_and_ends_nothing(run_of: RunOf, file: str, content: str) -> None:
    paths = run_of("COMPLETED", "RUNNING", "PENDING")
    (paths.folder / file).write_text(content)
    status = run_status(paths)
    assert f"; the run folder lacks {file}, or it is damaged" in status.sentence
    assert (status.state, status.instances) == (RunState.RUNNING, ())


@pytest.mark.parametrize(
    "name",
    ["plan.json", "jobs.json", "endpoint.json", "instances.json", "events/serve.jsonl", "ranks/serve_0.json"],
)
def test_a_file_that_cannot_be_read_hides_nothing_else(run_of: RunOf, name: str) -> None:
    paths = run_of("COMPLETED", "RUNNING", "PENDING")
    add_event(paths, "serve", "stage_begin", job_id="102")
    add_rank(paths, 0)
    publish(paths)
    write_json(paths.instances, [{"instance": 0, "state": "ready", "restarts": 0, "reason": None}])
    (paths.folder / name).unlink()
    (paths.folder / name).mkdir()
    assert [stage.job_id for stage in run_status(paths).stages][1:] == ["102", "103"]
    assert CliRunner().invoke(main, ["status", str(paths.folder)]).exception is None
    assert cancel_run(paths).stages[1].state == "CANCELLED"


def test_a_server_without_a_started_instance_is_not_damaged(run_of: RunOf) -> None:
    paths = run_of("COMPLETED", "FAILED=7:0", "FAILED=7:0")
    write_json(paths.instances, [])  # as where HAProxy does not start
    add_event(paths, "serve", "failed", reason="HAProxy could not bind port 8000")
    assert run_status(paths).sentence.endswith("HAProxy could not bind port 8000")


def test_a_lost_submission_record_is_named_of_a_run_that_was_submitted(run_of: RunOf) -> None:
    paths = run_of("COMPLETED", "RUNNING", "PENDING")
    paths.jobs.unlink()
    for by_submit in (False, True):
        add_event(paths, "serve", "stage_begin", job_id="2", submitted=by_submit)
        assert ("the run folder lacks jobs.json" in run_status(paths).sentence) is by_submit


def test_a_folder_that_cannot_be_written_is_named_while_the_run_lives(
    run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = run_of("COMPLETED", "RUNNING", "PENDING")
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
    assert "the run folder cannot be written" in run_status(paths).sentence


# Slurm is away or wrong -----------------------------------------------------------------------


def served(run_of: RunOf) -> RunPaths:
    """A run whose server runs; rank 0 has a record and a heartbeat."""
    paths = run_of("COMPLETED", "RUNNING", "PENDING")
    add_event(paths, "build", "stage_begin", job_id="101")
    add_event(paths, "build", "stage_end", exit_code=0, job_id="101")
    add_event(paths, "serve", "stage_begin", job_id="102")
    add_rank(paths, 0)
    Heartbeat(paths.rank_heartbeat("serve", 0)).beat()
    return paths


def test_a_server_that_gives_signs_of_life_is_not_lost_because_slurm_knows_no_job(
    run_of: RunOf, fake_slurm: FakeSlurm
) -> None:
    paths = served(run_of)
    for job in fake_slurm.jobs:
        fake_slurm.forget(job)
    assert run_status(paths).stages[1].sentence == "runs by its own files; Slurm does not know its job"
    os.utime(paths.rank_heartbeat("serve", 0), (1, 1))
    assert run_status(paths).state is RunState.LOST


def test_a_run_folder_into_which_no_rank_writes_is_named(run_of: RunOf) -> None:
    """As while its file server hangs: the ranks wait, and nobody in the job can record it."""
    paths = served(run_of)
    assert "no rank has written" not in run_status(paths).sentence
    os.utime(paths.rank_heartbeat("serve", 0), (time.time() - 30, time.time() - 30))
    assert (
        "; no rank has written for 30 s: the run's file system may stand still" in run_status(paths).sentence
    )


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_garbage_of_slurms_commands_is_no_answer(run_of: RunOf, fake_slurm: FakeSlurm, command: str) -> None:
    paths = served(run_of)
    (fake_slurm.bin / command).write_text("#!/bin/sh\necho 'Welcome to the cluster!'\n")
    with pytest.raises(SubmissionError, match=f"{command} answered 'Welcome to the cluster!'") as caught:
        run_status(paths)
    assert caught.value.transient


@pytest.mark.parametrize("as_json", [False, True])
def test_without_an_answer_of_slurm_status_shows_what_the_folder_knows(
    run_of: RunOf, fake_slurm: FakeSlurm, as_json: bool
) -> None:
    paths = served(run_of)
    arguments = ["status", str(paths.folder), "--runs", str(paths.folder.parent), *(["--json"] * as_json)]
    fake_slurm.trouble("squeue", CONTROLLER_GONE)
    answer = CliRunner().invoke(main, arguments)
    assert "runs by its own files; Slurm does not answer now" in answer.output
    assert isinstance(answer.exception, SubmissionError)
    fake_slurm.trouble("squeue", CONTROLLER_GONE)
    status = Run(paths).status
    assert "runs by its own files; Slurm does not answer now" in status.sentence and not status.settled

    add_rank(paths, 0, ended_at=65.0, exit_code=-9)
    paths.batch_log("serve").write_text(f"{CONTROLLER_GONE}\n")
    add_event(paths, "companion", "stage_end", exit_code=10)
    fake_slurm.trouble("squeue", CONTROLLER_GONE)
    answer = CliRunner().invoke(main, arguments)
    died = "rank 0 on n0 died: killed by signal 9 (SIGKILL)"
    assert f"stage serve has lost its server; Slurm does not answer now; {died}" in answer.output
    assert as_json or "cause: Rank 0 on n0 was killed by signal 9 (SIGKILL)" in answer.output
    assert len(fake_slurm.calls("squeue", "sacct", "scontrol")) == 3
