"""Where a pending job stands in the queue, and which limits hold it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass, field

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
    """Where a pending job stands in the queue. Each is ``None`` or empty if Slurm does not say it."""

    reason: str
    """Why it waits, in Slurm's own word."""
    priority: int | None
    place: int | None
    """By priority among the pending jobs of its partition; 1: the next."""
    pending: int | None
    """How many jobs are pending there."""
    limits: tuple[str, ...]
    """The limits that may hold it, e.g. ``MaxJobs=2``; only if its reason is a limit."""

    def __str__(self) -> str:
        parts = []
        if self.place is not None:
            parts.append(f"place {self.place:,} of {self.pending:,} by priority")
        if self.limits:
            parts.append(f"limits: {', '.join(self.limits)}")
        return "; ".join(parts)


@dataclass
class Queue:
    """Answers about pending jobs from sprio and sacctmgr; whichever does not answer is not asked again."""

    conf: str | None
    """Value for ``SLURM_CONF``; ``None`` leaves it as it is."""
    _silent: set[str] = field(default_factory=set)

    def look(self, infos: Iterable[JobInfo]) -> dict[str, Waiting]:
        """Return where the pending jobs stand: one sprio at most, and one sacctmgr for each kind of limit."""
        pending = [info for info in infos if info.state.name == "PENDING"]
        priorities = self._priorities() if any(info.reason in _BY_PRIORITY for info in pending) else {}
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
            place, count = _place(info, priorities)
            found[info.job_id] = Waiting(info.reason, info.priority, place, count, held_by)
        return found

    def _priorities(self) -> dict[str, tuple[int, str]]:
        """Return priority and partition of the cluster's pending jobs, by job id."""
        rows = self._ask("sprio", "--noheader", "--format=%i|%Y|%r")
        rows = [[column.strip() for column in row] for row in rows]
        return {row[0]: (int(row[1]), row[2]) for row in rows if len(row) == 3 and row[1].isdecimal()}

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
        if command[0] in self._silent:
            return []
        try:
            answer = run_command(command, self.conf, timeout_s=_TIMEOUT_S)
        except SubmissionError:
            answer = None
        if answer is None or answer.returncode:
            self._silent.add(command[0])
            return []
        return [line.split("|") for line in answer.stdout.splitlines()]


_BY_PRIORITY = ("Priority", "Resources")
"""Reasons of jobs that wait for their turn; others do not start however high their priority is."""


def _place(info: JobInfo, priorities: dict[str, tuple[int, str]]) -> tuple[int | None, int | None]:
    """Return a job's place in its partition and how many are pending there; jobs of equal priority by age."""
    if info.reason not in _BY_PRIORITY or info.job_id not in priorities:
        return None, None
    own, partition = priorities[info.job_id]
    others = [(value, job) for job, (value, where) in priorities.items() if where == partition]
    before = sum((-value, _order(job)) < (-own, _order(info.job_id)) for value, job in others)
    return before + 1, len(others)


def _order(job_id: str) -> int:
    """Return the number of a job, also of ``12_[3-4]``, a task of an array."""
    digits = job_id.partition("_")[0]
    return int(digits) if digits.isdecimal() else 0


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
