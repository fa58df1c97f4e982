"""What is asked of Slurm, how often, and what its answers mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.fake_slurm import CONTROLLER_GONE, FakeSlurm
from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths, read_plan
from trtllm_hpc.scheduler import slurm as module
from trtllm_hpc.scheduler.job_info import JobInfo
from trtllm_hpc.scheduler.job_origin import RunJob
from trtllm_hpc.scheduler.slurm import Slurm


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """The run to which the jobs of these tests belong: each is its server."""
    return RunPaths(tmp_path / "my run")


Add = Callable[..., str]


@pytest.fixture
def add(fake_slurm: FakeSlurm, run: RunPaths) -> Add:
    """Add a job of the run to the cluster; with facts of somebody else's where a test names them."""

    def add_job(state: str, **facts: Any) -> str:
        job = fake_slurm.add(state)
        fake_slurm.assign(run, {"serve": job})
        fake_slurm.set(job, state, **facts)
        return job

    return add_job


def of(run: RunPaths, *jobs: str) -> list[RunJob]:
    return [RunJob.of(run, read_plan(run), {"serve": job})["serve"] for job in jobs]


def ask(run: RunPaths, *jobs: str, slurm: Slurm | None = None) -> dict[str, JobInfo]:
    """What Slurm reports of these jobs of the run, by id."""
    return {job.job_id: info for job, info in (slurm or Slurm()).query(of(run, *jobs)).items()}


def test_without_jobs_nothing_is_queried(fake_slurm: FakeSlurm) -> None:
    assert Slurm().query([]) == {}
    Slurm().cancel([])
    assert fake_slurm.calls() == []


def test_one_squeue_answers_for_all_jobs_that_live(fake_slurm: FakeSlurm, add: Add, run: RunPaths) -> None:
    jobs = [add("PENDING", reason="Resources"), add("RUNNING", nodes="n[1-2]")]
    answers = ask(run, *jobs)
    assert [answers[job].state.name for job in jobs] == ["PENDING", "RUNNING"]
    assert (answers[jobs[0]].reason, answers[jobs[1]].reason) == ("Resources", "")
    assert answers[jobs[1]].nodes == "n[1-2]"
    assert [call[0] for call in fake_slurm.calls()] == ["squeue"]


def test_sacct_is_queried_only_for_jobs_that_have_ended(
    fake_slurm: FakeSlurm, add: Add, run: RunPaths
) -> None:
    running = add("RUNNING", nodes="n1")
    failed = add("FAILED", exit="8:0", nodes="n2")
    gone = add("COMPLETED", nodes="n3")
    fake_slurm.forget(gone, accounting=False)
    answers = ask(run, running, failed, gone)
    assert (answers[failed].exit_code, answers[failed].exit_signal) == (8, 0)
    assert answers[gone].state.ok
    [call] = fake_slurm.calls("sacct")
    assert call[-1] == f"--jobs={failed},{gone}"
    assert fake_slurm.calls("scontrol") == []


def test_without_accounting_scontrol_gives_the_exit_code(
    fake_slurm: FakeSlurm, add: Add, run: RunPaths
) -> None:
    fake_slurm.without_accounting()
    job = add("FAILED", exit="0:9", nodes="n1")
    slurm = Slurm()
    for _ in range(2):
        answer = ask(run, job, slurm=slurm)[job]
        assert (answer.exit_code, answer.exit_signal, answer.nodes) == (0, 9, "n1")
    assert len(fake_slurm.calls("scontrol")) == 2
    assert len(fake_slurm.calls("sacct")) == 1, "a site without accounting is asked for it once"


def test_a_heterogeneous_job_is_one_job(fake_slurm: FakeSlurm, add: Add, run: RunPaths) -> None:
    """Its components are ``101+0`` and ``101+1`` to Slurm."""
    job = add("PENDING", reason="None", further=[{"reason": "Resources"}])
    assert ask(run, job)[job].reason == "Resources"
    fake_slurm.set(job, "RUNNING", nodes="n1", further=[{"nodes": "n[2-3]"}])
    running = ask(run, job)
    assert list(running) == [job]
    assert (running[job].job_id, running[job].nodes) == (job, "n1,n[2-3]")
    second = {"state": "NODE_FAIL", "nodes": "n[2-3]", "given": "gres/gpu=16", "energy": "30", "exit": "0:1"}
    fake_slurm.set(job, "CANCELLED", given="gres/gpu=8", energy="12", further=[second])
    ended = ask(run, job)[job]
    assert (ended.state.name, ended.exit_signal, ended.gpus, ended.energy_j) == ("NODE_FAIL", 1, 24, 42.0)
    fake_slurm.without_accounting()
    assert ask(run, job)[job].nodes == "n[2-3],n1"


def test_the_components_of_a_job_end_one_after_another(
    fake_slurm: FakeSlurm, add: Add, run: RunPaths
) -> None:
    job = add("FAILED", exit="1:0", further=[{"state": "NODE_FAIL", "exit": "0:1"}])
    assert ask(run, job)[job].state.name == "NODE_FAIL", "because of it the script failed"
    fake_slurm.set(job, "COMPLETED", exit="0:0", further=[{"state": "RUNNING"}])
    fake_slurm.forget(job, accounting=False)
    assert job not in ask(run, job), "a component has not ended"


def test_accounting_that_is_behind_does_not_bring_a_job_back(
    fake_slurm: FakeSlurm, add: Add, run: RunPaths
) -> None:
    """slurmdbd hears of the end after the controller."""
    job = add("COMPLETED", exit="0:0", unaccounted=True)
    assert ask(run, job)[job].state.name == "COMPLETED"
    fake_slurm.forget(job, accounting=False)
    fake_slurm.set(job, "RUNNING")
    assert job not in ask(run, job)


@pytest.mark.parametrize("accounting", [True, False])
def test_a_job_that_nobody_knows_is_left_out(
    fake_slurm: FakeSlurm, accounting: bool, add: Add, run: RunPaths
) -> None:
    if not accounting:
        fake_slurm.without_accounting()
    job, other = add("COMPLETED"), add("RUNNING")
    fake_slurm.forget(job)
    assert ask(run, job) == {}
    assert set(ask(run, job, other)) == {other}


def test_a_state_of_a_newer_slurm_is_reported_and_not_final(
    fake_slurm: FakeSlurm, add: Add, run: RunPaths
) -> None:
    job = add("TELEPORTING")
    state = ask(run, job)[job].state
    assert (state.name, state.final, state.ok) == ("TELEPORTING", False, False)
    assert "unknown" in state.sentence


@pytest.mark.parametrize("accounting", [True, False])
def test_the_user_who_cancelled_and_a_missing_node_are_dropped(
    fake_slurm: FakeSlurm, accounting: bool, add: Add, run: RunPaths
) -> None:
    if not accounting:
        fake_slurm.without_accounting()
    job = add("CANCELLED by 1000", exit="0:0")
    answer = ask(run, job)[job]
    assert (answer.state.name, answer.state.final, answer.nodes) == ("CANCELLED", True, "")


def test_an_unreachable_controller_is_a_transient_error(
    fake_slurm: FakeSlurm, add: Add, run: RunPaths
) -> None:
    job = add("RUNNING")
    fake_slurm.trouble("squeue", CONTROLLER_GONE)
    with pytest.raises(SubmissionError) as caught:
        ask(run, job)
    assert caught.value.transient
    assert CONTROLLER_GONE in caught.value.message
    assert caught.value.hint is not None and "sinfo" in caught.value.hint
    assert ask(run, job)[job].state.name == "RUNNING"


def test_a_command_that_hangs_is_given_up(
    fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, add: Add, run: RunPaths
) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.4)
    job = add("RUNNING")
    fake_slurm.trouble("squeue", None, after_s=3600)
    with pytest.raises(SubmissionError) as caught:
        ask(run, job)
    assert caught.value.transient and "squeue did not answer" in caught.value.message


def test_a_machine_without_slurm_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunPaths
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SubmissionError, match="There is no squeue on this machine") as caught:
        ask(run, "1")
    assert caught.value.hint is not None and "--cluster local" in caught.value.hint


def test_a_missing_slurm_conf_is_an_error_before_any_command(
    fake_slurm: FakeSlurm, tmp_path: Path, run: RunPaths
) -> None:
    with pytest.raises(SubmissionError, match=r"There is no .*gone\.conf on this machine") as caught:
        ask(run, "101", slurm=Slurm(str(tmp_path / "gone.conf")))
    assert fake_slurm.calls() == [] and "sandbox up" in str(caught.value.hint)


def test_a_slurm_that_knows_no_controller_is_one_sentence_and_a_next_command(
    fake_slurm: FakeSlurm, run: RunPaths
) -> None:
    fake_slurm.trouble(
        "squeue",
        "squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
        "squeue: error: fetch_config: DNS SRV lookup failed\n"
        "squeue: error: _establish_config_source: failed to fetch config\n"
        "squeue: fatal: Could not establish a configuration source",
    )
    with pytest.raises(SubmissionError) as caught:
        ask(run, "101")
    assert caught.value.message == (
        "Slurm cannot be reached from this machine: Could not establish a configuration source."
    )
    assert caught.value.hint is not None and "login node" in caught.value.hint


def test_cancelling_passes_over_what_has_ended(fake_slurm: FakeSlurm, add: Add, run: RunPaths) -> None:
    running, done, gone = add("RUNNING"), add("COMPLETED"), add("FAILED")
    fake_slurm.forget(gone)
    Slurm().cancel(of(run, running, done, gone))
    assert fake_slurm.state(running) == "CANCELLED by 1000"
    assert fake_slurm.state(done) == "COMPLETED"


def test_a_cancellation_that_slurm_refuses_is_an_error(
    fake_slurm: FakeSlurm, add: Add, run: RunPaths
) -> None:
    fake_slurm.trouble("scancel", "scancel: error: Kill job error on job id 101: Access/permission denied")
    with pytest.raises(SubmissionError, match="Access/permission denied"):
        Slurm().cancel(of(run, add("RUNNING")))


def test_variables_of_the_site_do_not_change_a_query(
    fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, add: Add, run: RunPaths
) -> None:
    """The answers are read by column: another format would be taken for no job at all."""
    job = add("RUNNING")
    shown = tmp_path / "environment"
    squeue = fake_slurm.bin / "squeue"
    squeue.write_text(squeue.read_text().replace("exec", f"env > {shown}\nexec"))
    for name in ("SQUEUE_FORMAT", "SQUEUE_STATES", "SQUEUE_PARTITION", "SQUEUE_USERS"):
        monkeypatch.setenv(name, "batch")
    conf = tmp_path / "other.conf"
    conf.touch()
    assert ask(run, job, slurm=Slurm(str(conf)))[job].state.name == "RUNNING"
    lines = shown.read_text().splitlines()
    assert f"SLURM_CONF={conf}" in lines
    assert [line for line in lines if line.startswith(("SQUEUE_", "SACCT_", "SCANCEL_"))] == []
