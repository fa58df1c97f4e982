"""``runs --all-users`` of a real accounting: what ordinary users, operators and nobody else may see."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.schemas.check import documented
from tests.slurm.conftest import Person, bare_server
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.sandbox import Sandbox

pytestmark = pytest.mark.slurm

COLLEAGUE = "games"


def test_everybody_sees_all_runs_unless_accounting_hides_them_from_all_but_operators(
    person: Person,
) -> None:
    job = person.job("shown", **bare_server(person.folder, door="none", keep_running=True))
    _, run = person.submit(job, "--set", "cluster.gpu_request=gres", wait=False)
    colleague = replace(person, user=pwd.getpwnam(COLLEAGUE))
    words = ("runs", "--all-users", "--cluster", person.profile)

    def row() -> dict[str, Any]:
        rows = documented("runs", colleague.types(*words, "--json").stdout)
        return next((dict(it) for it in rows if it["run_id"] == run.run_id), {})

    assert eventually(lambda: row().get("state") == "running"), row()
    shown = row()
    assert (shown["user"], shown["gpus"], shown["folder"]) == (person.user.pw_name, 1, str(run.folder))
    with private_jobs(person.sandbox):
        refused = colleague.types(*words)
        assert refused.returncode == ExitCode.SUBMISSION, refused.stdout
        hidden = f"Slurm's accounting shows {COLLEAGUE} nobody else's jobs (PrivateData in slurmdbd.conf)."
        assert hidden in refused.stderr and refused.stdout == ""
        with operator(person.sandbox, COLLEAGUE):
            assert row()["gpu_hours"] > 0
    person.cancel(run)
    assert eventually(lambda: row()["state"] == "cancelled"), row()


@contextmanager
def private_jobs(sandbox: Sandbox) -> Iterator[None]:
    """Have accounting show users their own jobs only."""
    file = sandbox.slurm_conf.with_name("slurmdbd.conf")
    before = file.read_text()
    try:
        reread(sandbox, file, before + "PrivateData=jobs\n")
        yield
    finally:
        reread(sandbox, file, before)


def reread(sandbox: Sandbox, file: Path, text: str) -> None:
    """Write slurmdbd's configuration, and have the daemon take it without a restart."""
    file.write_text(text)
    [daemon] = [it for it in sandbox.head.processes() if Path(it.arguments[0]).name == "slurmdbd"]
    os.kill(daemon.pid, signal.SIGHUP)
    wanted = "jobs" if "PrivateData" in text else "none"

    def is_read() -> bool:
        shown = sacctmgr(sandbox, "show", "configuration").partition("SlurmDBD")[2].split()
        return shown[shown.index("PrivateData") + 2] == wanted

    assert eventually(is_read)


@contextmanager
def operator(sandbox: Sandbox, user: str) -> Iterator[None]:
    """Make a user an operator of Slurm."""
    sacctmgr(sandbox, "add", "account", "staff")
    try:
        sacctmgr(sandbox, "add", "user", user, "account=staff", "adminlevel=operator")
        yield
    finally:
        sacctmgr(sandbox, "delete", "user", user)
        sacctmgr(sandbox, "delete", "account", "staff")


def sacctmgr(sandbox: Sandbox, *words: str) -> str:
    environment = {**os.environ, "SLURM_CONF": str(sandbox.slurm_conf)}
    command = ["sacctmgr", "--immediate", *words]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
