"""Why a pending job waits, and which limits hold it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.scheduler.job_info import JobInfo
from trtllm_hpc.scheduler.reasons import Limit, limit_of
from trtllm_hpc.scheduler.slurm import run_command

_TIMEOUT_S = 10.0
"""Bound on each command: these only inform."""

_LIMITS = (
    *("GrpJobs", "GrpSubmit", "GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "GrpWall"),
    *("MaxTRES", "MaxTRESMins", "MaxTRESPerNode", "MaxWall"),
)
_ASSOCIATION_LIMITS = (*_LIMITS, "MaxJobs", "MaxSubmit")
_QOS_LIMITS = (
    *_LIMITS,
    *("MaxJobsPU", "MaxSubmitPU", "MaxTRESPU", "MaxJobsPA", "MaxSubmitPA", "MaxTRESPA", "MinTRES"),
)
"""Names of limits as sacctmgr(1) prints and takes them; PU is per user, PA per account."""


@dataclass(frozen=True)
class Waiting:
    """Why a pending job waits."""

    reason: str
    """Why it waits, in Slurm's own word."""
    limits: tuple[str, ...]
    """The limits that may hold it, e.g. ``MaxJobs=2``; only if its reason is a limit."""

    def __str__(self) -> str:
        return f"limits: {', '.join(self.limits)}" if self.limits else ""


@dataclass
class Queue:
    """Answers about pending jobs from sacctmgr, which is not asked again once it does not answer."""

    conf: str | None
    """Value for ``SLURM_CONF``; ``None`` leaves it as it is."""
    _silent: bool = False

    def look(self, infos: Iterable[JobInfo]) -> dict[str, Waiting]:
        """Return why the pending jobs wait; sacctmgr is asked once for each kind of limit."""
        pending = [info for info in infos if info.state.name == "PENDING"]
        limits: dict[tuple[Limit, str], tuple[str, ...]] = {}
        found = {}
        for info in pending:
            limit = limit_of(info.reason)
            held_by: tuple[str, ...] = ()
            if limit is not None:
                key = (limit, info.qos if limit.of_qos else info.account)
                if key not in limits:
                    limits[key] = self._limits(*key)
                held_by = limits[key]
            found[info.job_id] = Waiting(info.reason, held_by)
        return found

    def _limits(self, limit: Limit, owner: str) -> tuple[str, ...]:
        """Return the limits of a QOS, of an account, or of this user's part in it."""
        every = _QOS_LIMITS if limit.of_qos else _ASSOCIATION_LIMITS
        names = [name for name in every if limit.kind in name[:3]]
        if limit.of_qos:
            which = ["qos", f"name={owner}"]
        else:
            # The limit of all users of an account together is that of the row without a user.
            which = ["assoc", f"user={'' if limit.kind == 'Grp' else _user()}", f"account={owner}"]
        rows = self._ask("sacctmgr", "--noheader", "--parsable2", "show", *which, f"format={','.join(names)}")
        pairs = (pair for row in rows for pair in zip(names, row, strict=False))
        return tuple(dict.fromkeys(f"{name}={value}" for name, value in pairs if value.strip()))

    def _ask(self, *command: str) -> list[list[str]]:
        """Return the rows of what a command prints; none if it does not answer, now or before."""
        if self._silent:
            return []
        try:
            answer = run_command(command, self.conf, timeout_s=_TIMEOUT_S)
        except SubmissionError:
            answer = None
        if answer is None or answer.returncode:
            self._silent = True
            return []
        return [line.split("|") for line in answer.stdout.splitlines()]


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
