"""The states of one cluster's jobs: one query for all of them, at growing pauses."""

from __future__ import annotations

import time
from collections.abc import Collection

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.scheduler.job_info import JobInfo, RunJob
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.states import LOST

_SHORTEST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 15.0
"""Pauses between two queries; they grow with the time since something happened."""


class JobWatcher:
    """Knows the states of one cluster's jobs.

    A job that has ended with a known exit code is not queried again; an unknown job is: accounting may be
    late. The methods below ``refresh`` are those that submitit's :class:`~submitit.core.core.Job` calls.
    """

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        self.queries = 0
        """How often Slurm was queried."""
        self._known: dict[RunJob, JobInfo] = {}
        self._jobs: set[RunJob] = set()
        self._ended: set[RunJob] = set()
        self._answered: set[RunJob] = set()
        self._by_id: dict[str, RunJob] = {}
        self._news_at = self._queried_at = float("-inf")

    def job_infos(self, jobs: Collection[RunJob], mode: str = "standard") -> dict[RunJob, JobInfo]:
        """Return what Slurm knows of these jobs; jobs unknown to it are left out.

        The ``mode`` is ``force`` (query now), ``standard`` (query new jobs now and others when the pause is
        over) or ``cache`` (do not query). Raises SubmissionError if Slurm does not answer.
        """
        self.add(jobs)
        if jobs:
            self.refresh(mode)
        return {job: self._known[job] for job in jobs if job in self._known}

    def add(self, jobs: Collection[RunJob]) -> None:
        """Query these jobs from now on."""
        if not self._jobs.issuperset(jobs):
            self._jobs.update(jobs)
            self.restart_pauses()
        self._by_id |= {job.job_id: job for job in jobs}

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

    def register_job(self, job_id: str) -> None:
        """Do nothing: a job registers with all that identifies it (:meth:`add`)."""

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        """Return a job's state as submitit reads it; empty before the first answer."""
        job = self._by_id[job_id]
        try:
            self.job_infos([job], mode)
        except SubmissionError as error:
            if not error.transient:  # else what was known stays valid until the next query
                raise
        if job not in self._answered:
            return {}
        info = self._known.get(job) or JobInfo(job_id, LOST)
        return {
            "State": info.state.name,
            "Final": "yes" if info.state.final else "",
            "ExitCode": "" if info.exit_code is None else str(info.exit_code),
            "NodeList": info.nodes,
        }

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return Slurm's name of the state, or UNKNOWN before the first answer."""
        return self.get_info(job_id, mode).get("State") or "UNKNOWN"

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Return whether the job has ended, by the table of states and not by submitit's list."""
        return bool(self.get_info(job_id, mode).get("Final"))
