"""What is asked of Slurm, how often, and what its answers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.fake_slurm import CONTROLLER_GONE, FakeSlurm
from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.scheduler import slurm as module
from trtllm_hpc.scheduler.job_info import JobInfo, RunJob
from trtllm_hpc.scheduler.slurm import Slurm


class Site:
    """A cluster, and a run of which each job is the server."""

    def __init__(self, slurm: FakeSlurm, folder: Path) -> None:
        self.slurm = slurm
        self.run = RunPaths(folder)

    def add(self, state: str, **facts: Any) -> str:
        """Add a job of the run; with facts of somebody else's where a test names them."""
        job = self.slurm.add(state)
        self.slurm.assign(self.run, {"serve": job})
        self.slurm.set(job, state, **facts)
        return job

    def of(self, *jobs: str) -> list[RunJob]:
        return [RunJob.of(self.run, None, {"serve": job})["serve"] for job in jobs]

    def ask(self, *jobs: str, slurm: Slurm | None = None) -> dict[str, JobInfo]:
        """What Slurm reports of these jobs, by id."""
        return {job.job_id: info for job, info in (slurm or Slurm()).query(self.of(*jobs)).items()}


@pytest.fixture
def site(fake_slurm: FakeSlurm, tmp_path: Path) -> Site:
    return Site(fake_slurm, tmp_path / "my run")


def test_one_squeue_answers_for_all_jobs_that_live(site: Site) -> None:
    jobs = [site.add("PENDING", reason="Resources"), site.add("RUNNING", nodes="n[1-2]")]
    answers = site.ask(*jobs)
    assert [answers[job].state.name for job in jobs] == ["PENDING", "RUNNING"]
    assert (answers[jobs[0]].reason, answers[jobs[1]].reason) == ("Resources", "")
    assert answers[jobs[1]].nodes == "n[1-2]"
    assert [call[0] for call in site.slurm.calls()] == ["squeue"]


def test_sacct_is_queried_only_for_jobs_that_have_ended(site: Site) -> None:
    running = site.add("RUNNING", nodes="n1")
    failed = site.add("FAILED", exit="8:0", nodes="n2")
    gone = site.add("COMPLETED", nodes="n3")
    site.slurm.forget(gone, accounting=False)
    answers = site.ask(running, failed, gone)
    assert (answers[failed].exit_code, answers[failed].exit_signal) == (8, 0)
    assert answers[gone].state.ok
    [call] = site.slurm.calls("sacct")
    assert call[-1] == f"--jobs={failed},{gone}"
    assert site.slurm.calls("scontrol") == []


def test_without_accounting_scontrol_gives_the_exit_code(site: Site) -> None:
    site.slurm.configure(accounting=False)
    job = site.add("FAILED", exit="0:9", nodes="n1")
    slurm = Slurm()
    for _ in range(2):
        answer = site.ask(job, slurm=slurm)[job]
        assert (answer.exit_code, answer.exit_signal, answer.nodes) == (0, 9, "n1")
    assert len(site.slurm.calls("scontrol")) == 2
    assert len(site.slurm.calls("sacct")) == 1, "a site without accounting is asked for it once"


def test_a_heterogeneous_job_is_one_job(site: Site) -> None:
    """Its components are ``101+0`` and ``101+1`` to Slurm."""
    job = site.add("PENDING", reason="None", further=[{"reason": "Resources"}])
    assert site.ask(job)[job].reason == "Resources"
    site.slurm.set(job, "RUNNING", nodes="n1", further=[{"nodes": "n[2-3]"}])
    running = site.ask(job)
    assert list(running) == [job]
    assert (running[job].job_id, running[job].nodes) == (job, "n1,n[2-3]")
    second = {"state": "NODE_FAIL", "nodes": "n[2-3]", "given": "gres/gpu=16", "energy": "30", "exit": "0:1"}
    site.slurm.set(job, "CANCELLED", given="gres/gpu=8", energy="12", further=[second])
    ended = site.ask(job)[job]
    assert (ended.state.name, ended.exit_signal, ended.gpus, ended.energy_j) == ("NODE_FAIL", 1, 24, 42.0)
    site.slurm.configure(accounting=False)
    assert site.ask(job)[job].nodes == "n[2-3],n1"


def test_the_components_of_a_job_end_one_after_another(site: Site) -> None:
    job = site.add("FAILED", exit="1:0", further=[{"state": "NODE_FAIL", "exit": "0:1"}])
    assert site.ask(job)[job].state.name == "NODE_FAIL", "because of it the script failed"
    site.slurm.set(job, "COMPLETED", exit="0:0", further=[{"state": "RUNNING"}])
    site.slurm.forget(job, accounting=False)
    assert job not in site.ask(job), "a component has not ended"


def test_accounting_that_is_behind_does_not_bring_a_job_back(site: Site) -> None:
    """slurmdbd hears of the end after the controller."""
    job = site.add("COMPLETED", exit="0:0", unaccounted=True)
    assert site.ask(job)[job].state.name == "COMPLETED"
    site.slurm.forget(job, accounting=False)
    site.slurm.set(job, "RUNNING")
    assert job not in site.ask(job)


@pytest.mark.parametrize("accounting", [True, False])
def test_a_job_that_nobody_knows_is_left_out(site: Site, accounting: bool) -> None:
    site.slurm.configure(accounting=accounting)
    job, other = site.add("COMPLETED"), site.add("RUNNING")
    site.slurm.forget(job)
    assert site.ask(job) == {}
    assert set(site.ask(job, other)) == {other}


def test_an_unreachable_controller_is_a_transient_error(site: Site) -> None:
    job = site.add("RUNNING")
    site.slurm.trouble("squeue", CONTROLLER_GONE)
    with pytest.raises(SubmissionError) as caught:
        site.ask(job)
    assert caught.value.transient
    assert CONTROLLER_GONE in caught.value.message
    assert caught.value.hint is not None and "sinfo" in caught.value.hint
    assert site.ask(job)[job].state.name == "RUNNING"


def test_a_command_that_hangs_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.4)
    job = site.add("RUNNING")
    site.slurm.trouble("squeue", None, after_s=3600)
    with pytest.raises(SubmissionError) as caught:
        site.ask(job)
    assert caught.value.transient and "squeue did not answer" in caught.value.message


def test_a_slurm_that_knows_no_controller_is_one_sentence_and_a_next_command(site: Site) -> None:
    site.slurm.trouble(
        "squeue",
        "squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
        "squeue: error: fetch_config: DNS SRV lookup failed\n"
        "squeue: error: _establish_config_source: failed to fetch config\n"
        "squeue: fatal: Could not establish a configuration source",
    )
    with pytest.raises(SubmissionError) as caught:
        site.ask("101")
    assert caught.value.message == (
        "Slurm cannot be reached from this machine: Could not establish a configuration source."
    )
    assert caught.value.hint is not None and "login node" in caught.value.hint


def test_cancelling_passes_over_what_has_ended(site: Site) -> None:
    running, done, gone = site.add("RUNNING"), site.add("COMPLETED"), site.add("FAILED")
    site.slurm.forget(gone)
    Slurm().cancel(site.of(running, done, gone))
    assert site.slurm.state(running) == "CANCELLED by 1000"
    assert site.slurm.state(done) == "COMPLETED"


def test_a_cancellation_that_slurm_refuses_is_an_error(site: Site) -> None:
    site.slurm.trouble("scancel", "scancel: error: Kill job error on job id 101: Access/permission denied")
    with pytest.raises(SubmissionError, match="Access/permission denied"):
        Slurm().cancel(site.of(site.add("RUNNING")))


def test_variables_of_the_site_do_not_change_a_query(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The answers are read by column: another format would be taken for no job at all."""
    job = site.add("RUNNING")
    shown = tmp_path / "environment"
    squeue = site.slurm.bin / "squeue"
    squeue.write_text(squeue.read_text().replace("exec", f"env > {shown}\nexec"))
    for name in ("SQUEUE_FORMAT", "SQUEUE_STATES", "SQUEUE_PARTITION", "SQUEUE_USERS"):
        monkeypatch.setenv(name, "batch")
    conf = tmp_path / "other.conf"
    conf.touch()
    assert site.ask(job, slurm=Slurm(str(conf)))[job].state.name == "RUNNING"
    lines = shown.read_text().splitlines()
    assert f"SLURM_CONF={conf}" in lines
    assert [line for line in lines if line.startswith(("SQUEUE_", "SACCT_", "SCANCEL_"))] == []
