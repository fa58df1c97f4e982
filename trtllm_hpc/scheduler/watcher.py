"""The states of one cluster's jobs: one query for all, at growing pauses; and why pending jobs wait."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.scheduler.job_info import JobInfo, RunJob
from trtllm_hpc.scheduler.reasons import Limit, limit_of
from trtllm_hpc.scheduler.slurm import Slurm, run_command

_SHORTEST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 15.0
"""Pauses between two queries; they grow with the time since something happened."""
_LIMITS_TIMEOUT_S = 10.0
"""Bound on each call of sacctmgr, which only informs."""

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


class JobWatcher:
    """Knows the states of one cluster's jobs.

    A job that has ended with a known exit code is not queried again; an unknown job is: accounting may be
    late.
    """

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        self.queries = 0
        """How often Slurm was queried."""
        self._known: dict[RunJob, JobInfo] = {}
        self._jobs: set[RunJob] = set()
        self._ended: set[RunJob] = set()
        self._answered: set[RunJob] = set()
        self._news_at = self._queried_at = float("-inf")
        self._waiting: dict[str, Waiting] = {}
        self._looked_after = 0
        self._sacctmgr_answers = True

    def job_infos(self, jobs: Collection[RunJob], mode: str = "standard") -> dict[RunJob, JobInfo]:
        """Return what Slurm knows of these jobs; jobs unknown to it are left out.

        The ``mode`` is ``force`` (query now), ``standard`` (query new jobs now and others when the pause is
        over) or ``cache`` (do not query). Raises SubmissionError if Slurm does not answer.
        """
        if not self._jobs.issuperset(jobs):
            self._jobs.update(jobs)
            self.restart_pauses()
        if jobs:
            self.refresh(mode)
        return {job: self._known[job] for job in jobs if job in self._known}

    def restart_pauses(self) -> None:
        """Query at once and then at short pauses again: something has happened."""
        self._news_at, self._queried_at = time.time(), float("-inf")

    def refresh(self, mode: str = "standard") -> None:
        """Query all jobs that have not ended, if it is time for that; ``mode`` as for :meth:`job_infos`.

        If Slurm does not answer (SubmissionError), what was known before stays known.
        """
        now = time.time()
        pause_s = min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, (now - self._news_at) / 2))
        if mode == "cache" or (mode == "standard" and now - self._queried_at <= pause_s):
            return
        self.queries += 1
        self._queried_at = now
        queried = self._jobs - self._ended
        answers = self.slurm.query(queried)
        self._answered |= queried
        self._known = {job: info for job, info in self._known.items() if job not in queried} | answers
        self._ended |= {
            job for job, info in answers.items() if info.state.final and info.exit_code is not None
        }

    def has_answer(self, job: RunJob) -> bool:
        """Return whether Slurm has answered a query for this job."""
        return job in self._answered

    def waiting(self) -> dict[str, Waiting]:
        """Return why the pending jobs wait, by id.

        After each query sacctmgr is asked once for each kind of limit; once it does not answer, never again.
        """
        if self._looked_after != self.queries:
            self._looked_after = self.queries
            self._waiting = {}
            known: dict[tuple[Limit, str], tuple[str, ...]] = {}
            for info in self._known.values():
                if info.state.name != "PENDING":
                    continue
                limit = limit_of(info.reason)
                limits: tuple[str, ...] = ()
                if limit is not None:
                    key = (limit, info.qos if limit.of_qos else info.account)
                    limits = known[key] = known[key] if key in known else self._limits(*key)
                self._waiting[info.job_id] = Waiting(info.reason, limits)
        return self._waiting

    def _limits(self, limit: Limit, owner: str) -> tuple[str, ...]:
        """Return the limits of a QOS, of an account, or of this user's part in it."""
        every = _QOS_LIMITS if limit.of_qos else _ASSOCIATION_LIMITS
        names = [name for name in every if limit.kind in name[:3]]
        if limit.of_qos:
            which = ["qos", f"name={owner}"]
        else:
            # The limit of all users of an account together is that of the row without a user.
            which = ["assoc", f"user={'' if limit.kind == 'Grp' else _user()}", f"account={owner}"]
        command = ["sacctmgr", "--noheader", "--parsable2", "show", *which, f"format={','.join(names)}"]
        output = ""
        if self._sacctmgr_answers:
            self._sacctmgr_answers = False
            with suppress(SubmissionError):
                answer = run_command(command, self.slurm.conf, timeout_s=_LIMITS_TIMEOUT_S)
                if not answer.returncode:
                    self._sacctmgr_answers, output = True, answer.stdout
        pairs = (pair for row in output.splitlines() for pair in zip(names, row.split("|"), strict=False))
        return tuple(dict.fromkeys(f"{name}={value}" for name, value in pairs if value.strip()))


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
