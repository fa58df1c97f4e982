"""The states of one cluster's jobs: one query for all of them, at growing pauses."""

from __future__ import annotations

import time
from collections.abc import Collection

from trtllm_hpc.scheduler.job_info import JobInfo, RunJob
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.waiting import Queue, Waiting

_SHORTEST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 15.0
"""Pauses between two queries; they grow with the time since something happened."""


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
        self._queue = Queue(slurm.conf)
        self._waiting: dict[str, Waiting] = {}
        self._looked_after = 0

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
        """Return why the pending jobs wait, by id; asked once after each query at most."""
        if self._looked_after != self.queries:
            self._looked_after = self.queries
            self._waiting = self._queue.look(self._known.values())
        return self._waiting
