"""``runs --all-users``: everybody's runs, as far as Slurm shows them."""

from __future__ import annotations

import getpass
import os
import pwd
import time
from pathlib import Path

import pytest

from tests.cli.typed import Types
from tests.cli.typed import home as home
from tests.cli.typed import types as types
from tests.scheduler.fake_slurm import FakeSlurm
from tests.schemas.check import documented
from trtllm_hpc.errors import ExitCode

WORDS = ("runs", "--all-users", "--cluster", "bare")
HOUR = 3600


def add(slurm: FakeSlurm, user: str, state: str, run: str, stage: str, gpus: int = 0, hours: int = 0) -> str:
    """A job of a user's run, which has run for so long."""
    now = int(time.time())
    times = {"submitted": now - hours * HOUR - 10, "started": now - hours * HOUR}
    times |= {"ends": now} if state not in ("RUNNING", "PENDING") else {}
    given = f"cpu=2,gres/gpu={gpus}" if gpus else "cpu=2"
    script = f"/home/{user}/my runs/{run}/scripts/{stage}.sbatch"
    line = f"sbatch --parsable --dependency=afterok:7 {script}"
    named = {"user": user, "name": f"{run.partition('-')[0]}-{stage}", "folder": f"/home/{user}"}
    return slurm.add(state, **times, **named, script=script, submit_line=line, given=given)


def test_jobs_of_one_run_are_one_row_and_other_jobs_none(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    add(fake_slurm, "ana", "COMPLETED", "chat-1", "build", 1, 4)
    add(fake_slurm, "ana", "RUNNING", "chat-1", "serve", 4, 2)
    add(fake_slurm, "ben", "FAILED", "code-2", "serve", 2, 1)
    waits = add(fake_slurm, "ben", "PENDING", "code-3", "serve", 8)
    fake_slurm.set(
        waits, "PENDING", submit_line="sbatch scripts/serve.sbatch", folder="/home/ben/runs/code-3"
    )
    never = add(fake_slurm, "ana", "CANCELLED", "code-4", "companion", 1)
    fake_slurm.set(never, "CANCELLED", started="Unknown")
    fake_slurm.add("RUNNING", user="eve", name="train", submit_line="sbatch train.sh", folder="/home/eve")
    fake_slurm.add("RUNNING", user="eve", name="mine", submit_line="sbatch /x/scripts/serve.sbatch")
    rows = {row["run_id"]: row for row in documented("runs", types(*WORDS, "--json").output)}
    assert {
        name: (it["user"], it["state"], it["gpus"], round(it["gpu_hours"])) for name, it in rows.items()
    } == {
        "chat-1": ("ana", "running", 4, 12),
        "code-2": ("ben", "failed", 2, 2),
        "code-3": ("ben", "pending", 8, 0),
        "code-4": ("ana", "cancelled", 1, 0),
    }
    assert rows["chat-1"]["folder"] == "/home/ana/my runs/chat-1"
    assert rows["code-3"]["folder"] == "/home/ben/runs/code-3"
    assert [*types(*WORDS, "--name", "code", "--state", "failed").output.split("\n")[2].split()][:3] == [
        *("ben", "code-2", "failed")
    ]


def test_a_site_that_shows_users_only_their_own_jobs(
    fake_slurm: FakeSlurm, home: Path, types: Types, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: pwd.getpwnam("daemon").pw_uid)
    add(fake_slurm, "ana", "RUNNING", "chat-1", "serve")
    question = f"user {getpass.getuser()}"
    fake_slurm.configure(private="accounts,jobs", limits={question: {"AdminLevel": "None"}})
    answer = types(*WORDS)
    assert (
        answer.code == ExitCode.SUBMISSION
        and "nobody else's jobs (PrivateData in slurmdbd.conf)" in answer.errors
    )
    fake_slurm.configure(limits={question: {"AdminLevel": "Operator"}})
    assert "chat-1" in types(*WORDS).output


def test_without_accounting_there_is_a_sentence(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    fake_slurm.configure(accounting=False)
    answer = types(*WORDS)
    assert answer.code == ExitCode.SUBMISSION
    assert "accounting does not list the jobs of all users: Slurm accounting storage" in answer.errors
