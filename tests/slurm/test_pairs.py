"""Two commands at once on one run, on a real Slurm: the table of docs/explanation/how-a-run-ends.md.

The first command stands still while it waits for Slurm's answer; then the second one is typed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.slurm.conftest import USER, Person, bare_server
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.renewal import Renewal

pytestmark = pytest.mark.slurm

LATE = """#!/bin/sh
# Slurm's command, which does its work at once and ends late: when NAME.hold is gone.
answer=$({command} "$@"); code=$?
name="${{TRTLLM_HPC_FOLLOWS:+$0.next}}"; name="${{name:-$0}}"
touch "$name.done"
while [ -e "$name.hold" ]; do sleep 0.05; done
[ -z "$answer" ] || printf '%s\\n' "$answer"
exit $code
"""
NEVER = 'cluster.sbatch_options=["--begin=now+1hour"]'
"""Jobs that wait in the queue: nothing has to start and to end."""
BUSY = "Another command submits, cancels or removes run"
Words = tuple[str | Path, ...]


class Ended(NamedTuple):
    code: int
    said: str


def end_of(process: subprocess.Popen[str]) -> Ended:
    output, errors = process.communicate(timeout=120)
    said = " ".join((output + errors).split())
    assert "Traceback" not in said, said
    return Ended(process.returncode, said)


class Late:
    """The user's ``sbatch``, by which a job submits the next one (``sbatch.next``), too, and ``scancel``."""

    def __init__(self, person: Person) -> None:
        self.person, self.folder = person, person.folder / "late"
        self.folder.mkdir(exist_ok=True)
        for name in ("sbatch", "scancel"):
            program = self.folder / name
            program.write_text(LATE.format(command=shutil.which(name)))
            program.chmod(0o755)
        subprocess.run(["chown", "-R", f"{USER.pw_uid}", self.folder], check=True)

    def types(self, *words: str | Path) -> subprocess.Popen[str]:
        """Begin ``trtllm-hpc`` with these commands of Slurm."""
        path = f"{self.folder}:{self.person.bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        return self.person.command("env", f"PATH={path}", "trtllm-hpc", *words)

    @contextmanager
    def hold(self, name: str) -> Iterator[Callable[[], bool]]:
        """Have a command end late; yields what says whether it has done its work."""
        hold, done = self.folder / f"{name}.hold", self.folder / f"{name}.done"
        done.unlink(missing_ok=True)
        hold.touch()
        try:
            yield done.exists
        finally:
            hold.unlink()


class Stage:
    """The user, the runs, and what is typed."""

    def __init__(self, person: Person) -> None:
        self.person, self.late = person, Late(person)
        self.runs = person.folder / "runs of pairs"
        self.runs.mkdir()
        shutil.chown(self.runs, USER.pw_uid)
        sections = bare_server(person.folder)
        self.job = person.job("pairs", **sections)
        self.options: Words = ("--runs", self.runs)

    def words(self, command: str, run: RunPaths | None) -> Words:
        if command == "submit":
            return ("submit", self.job, "--cluster", self.person.profile, "--set", NEVER, *self.options)
        if command == "prune":
            return ("runs", "prune", *self.options, "--older-than", "0d", "--yes")
        assert run is not None
        return (command, run.folder)

    def runs_there(self) -> set[Path]:
        return {file.parent for file in self.runs.glob("*/plan.json")}

    def rendered(self) -> RunPaths:
        return self.person.render(self.job, "--set", NEVER, "--runs", str(self.runs))[1]

    def types(self, command: str, run: RunPaths | None) -> subprocess.Popen[str]:
        return self.person.command("trtllm-hpc", *self.words(command, run))

    def known(self) -> set[str]:
        """The jobs that the runs' records name."""
        jobs = set[str]()
        for folder in self.runs_there():
            record = read_json(RunPaths(folder).jobs) or {}
            jobs |= {job["job_id"] for job in record.get("stages", {}).values()}
            renewal = Renewal.read(RunPaths(folder).renewal)
            jobs |= {job for job in ((renewal and (renewal.job_id, renewal.next_job_id)) or ()) if job}
        return jobs

    def leaves_nothing(self) -> None:
        """Assert that every job is known, and that ``cancel`` finds them all."""
        queued = set(self.person.jobs_in_queue("--states=PENDING,CONFIGURING,RUNNING,SUSPENDED"))
        assert queued <= self.known(), (queued, self.known())
        for folder in self.runs_there():
            cancelled = end_of(self.person.command("trtllm-hpc", "cancel", folder))
            assert cancelled.code == 0, cancelled
        self.person.has_nothing_left()


@pytest.fixture
def stage(person: Person) -> Iterator[Stage]:
    found = Stage(person)
    yield found
    shutil.rmtree(found.runs, ignore_errors=True)


REPEATED = [pytest.param(first, marks=pytest.mark.thorough) for first in ("resume", "cancel")]


@pytest.mark.parametrize("first", ["submit", *REPEATED])
def test_commands_come_while_the_first_waits_for_slurm(stage: Stage, first: str) -> None:
    run = None if first == "submit" else stage.rendered()
    if first == "cancel":
        assert end_of(stage.types("resume", run)).code == 0
    with stage.late.hold("scancel" if first == "cancel" else "sbatch") as has_worked:
        begun = stage.late.types(*stage.words(first, run))
        assert eventually(has_worked, 60)
        run = run or RunPaths(*stage.runs_there())
        for command, code, words in (
            ("resume", ExitCode.SUBMISSION, BUSY),
            ("prune", 0, "by another command right now" if first == "cancel" else ""),
            ("submit", 0, "next: trtllm-hpc status"),
        ):
            then = end_of(stage.types(command, run))
            assert then.code == code and words in then.said, (command, then)
        waits = stage.types("cancel", run)
        assert eventually(run.stop_request.exists, 60)
        assert waits.poll() is None and run.plan.exists()
    ended, cancelled = end_of(begun), end_of(waits)
    assert cancelled.code == 0 and f"{run.run_id}: cancelled" in cancelled.said, cancelled
    if first == "cancel":
        assert ended == cancelled
    else:
        assert ended.code == ExitCode.SUBMISSION, ended
        assert "was cancelled while it was submitted" in ended.said, ended
    stage.leaves_nothing()


@pytest.mark.thorough
@pytest.mark.parametrize("second", ["resume", "cancel", "prune"])
def test_a_command_comes_while_a_run_is_removed(stage: Stage, second: str) -> None:
    run = stage.rendered()
    assert [end_of(stage.types(it, run)).code for it in ("resume", "cancel")] == [0, 0]
    pruned, then = map(end_of, [stage.types("prune", run), stage.types(second, run)])
    assert pruned.code == 0, pruned
    if second == "resume":
        assert then.code in (0, ExitCode.SUBMISSION, ExitCode.RUN), then
        assert run.plan.exists() is (then.code == 0), (pruned, then)
    else:
        assert then.code in (0, ExitCode.RUN), then
        assert not run.folder.exists() or "by another command right now" in pruned.said, (pruned, then)
    assert list(stage.runs.glob(".removed-*")) == []
    stage.leaves_nothing()


@pytest.mark.thorough
def test_commands_come_while_a_job_submits_the_next_one(stage: Stage) -> None:
    person, late = stage.person, stage.late
    serve = {"renew": True, "keep_running": True, "time_limit_minutes": 20}
    renewing = person.job("renewing", **bare_server(person.folder, **serve))
    with late.hold("sbatch.next") as has_worked:
        with late.hold("sbatch") as is_submitted:
            submitted = late.types("submit", renewing, "--cluster", person.profile, "--runs", stage.runs)
            assert eventually(is_submitted, 60)
            run = RunPaths(*stage.runs_there())
            assert eventually(lambda: person.jobs_in_queue("--states=RUNNING"), 60)
            assert not has_worked()  # the job waits until it is recorded
        assert end_of(submitted).code == 0
        assert eventually(has_worked, 60)
        job, following = sorted(person.jobs_in_queue(), key=int)
        assert following not in stage.known()
        for command, code in (("resume", ExitCode.SUBMISSION), ("prune", 0), ("submit", 0)):
            then = end_of(stage.types(command, run))
            assert then.code == code, (command, then)
        assert {job, following} <= set(person.jobs_in_queue()) and run.plan.exists()
        cancelled = end_of(stage.types("cancel", run))
        assert cancelled.code == 0 and f"{run.run_id}: cancelled" in cancelled.said, cancelled
        assert not {job, following} & set(person.jobs_in_queue())
    stage.leaves_nothing()


def test_a_submission_that_is_killed_while_slurm_takes_its_job(stage: Stage) -> None:
    run = stage.rendered()
    with stage.late.hold("sbatch") as has_worked:
        killed = stage.late.types("resume", run.folder)
        assert eventually(has_worked, 60)
        killed.kill()
    end_of(killed)
    [job] = stage.person.jobs_in_queue()
    assert job not in stage.known()
    refused = end_of(stage.types("resume", run))
    assert refused.code == ExitCode.SUBMISSION, refused
    assert "is not over: stage serve waits in the queue" in refused.said
    cancelled = end_of(stage.types("cancel", run))
    assert cancelled.code == 0 and f"{run.run_id}: cancelled" in cancelled.said, cancelled
    assert stage.person.jobs_in_queue() == []
    assert [end_of(stage.types(it, run)).code for it in ("resume", "cancel")] == [0, 0]
    stage.leaves_nothing()
