"""One look at a run folder, in which each file is read once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.logs.causes.table import use_site_tables
from trtllm_hpc.logs.reading import quoted
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.plan_record import PlanRecord
from trtllm_hpc.runtime.records import Endpoint, Event, RankRecord, StopRequest, rank_records, read_events
from trtllm_hpc.scheduler.submission_record import SubmissionRecord, read_submission

if TYPE_CHECKING:
    from trtllm_hpc.runtime.renewal import Renewal

_Read = TypeVar("_Read")
_RANK_LOG = re.compile(r"([a-z]+(?:\.\d+)?)_(\d+)\.out")


class RunSnapshot:
    """The files of a run folder as they were when they were first needed; a new look takes a new snapshot.

    Logs are not kept here: :mod:`trtllm_hpc.logs.facts` remembers what each one shows until it changes.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self._events: dict[str, list[Event]] = {}
        self._ranks: dict[str, list[RankRecord]] = {}
        self.unread: dict[str, str] = {}
        """By name in the run folder: why a file that is there could not be read; empty: it is damaged."""

    @cached_property
    def plan(self) -> PlanRecord | None:
        """The plan; ``None`` if it cannot be read."""
        return PlanRecord.read(self.paths)

    def use_causes_of_site(self) -> None:
        """Have the tables of causes read that the run's cluster profile names."""
        if self.plan is not None and self.plan.causes_folder is not None:
            use_site_tables(Path(self.plan.causes_folder))

    @cached_property
    def submission(self) -> SubmissionRecord | None:
        """The submission record; ``None`` for a run that was rendered only, or if it is in ``unread``."""
        return self._read(lambda: read_submission(self.paths), None)

    def _read(self, read: Callable[[], _Read], otherwise: _Read) -> _Read:
        """Return what ``read`` reads. A single file that cannot be read must not hide all others."""
        try:
            return read()
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                name = os.path.relpath(error.filename or self.paths.folder, self.paths.folder)
                self.unread[name] = error.strerror or str(error)
            return otherwise

    @property
    def stages(self) -> dict[str, int | None]:
        """The GPUs that each stage asks for on all of its nodes, in the order of submission.

        Without a plan they are the submitted stages, whose GPUs are not known.
        """
        if self.plan is not None:
            return {stage.name: stage.gpus for stage in self.plan.stages}
        return dict.fromkeys(self.submission.stages if self.submission else ())

    @property
    def is_local(self) -> bool:
        """Whether the jobs are processes of the local profile."""
        source = self.submission or self.plan
        return source is not None and source.scheduler == "local"

    @property
    def controller(self) -> tuple[str | None, str | None]:
        """``SLURM_CONF`` and the cluster for Slurm's commands about the run, submitted or not."""
        source = self.submission or self.plan
        return (None, None) if source is None else source.controller

    def steps(self, kind: str) -> list[str]:
        """Return the job steps of a kind: one for each instance of the server, or each part of its job."""
        planned = {} if self.plan is None else self.plan.steps
        return planned.get(kind, [kind])

    def quoted(self, text: str) -> str:
        """Return what a job wrote as it may be shown anywhere, without the run's keys."""
        return quoted(text, *self._keys)

    @cached_property
    def _keys(self) -> list[str]:
        files, keys = [self.paths.key, self.paths.servers_key], []
        with suppress(OSError):
            files += self.paths.guest_key("").parent.iterdir()
        for file in files:
            with suppress(OSError):
                keys.append(file.read_text(errors="replace").strip())
        return keys

    def events(self, stage: str) -> list[Event]:
        """Return the events of a stage in the order of their times."""
        if stage not in self._events:
            self._events[stage] = self._read(lambda: read_events(self.paths, stage), [])
        return self._events[stage]

    @cached_property
    def all_events(self) -> list[Event]:
        """The events of all stages in the order of their times."""
        files: list[Path] = self._read(lambda: sorted(self.paths.events.iterdir()), [])
        stages = [file.stem for file in files if file.suffix == ".jsonl"]
        return sorted((event for stage in stages for event in self.events(stage)), key=attrgetter("time"))

    def ranks(self, step: str) -> list[RankRecord]:
        """Return the records of the ranks of a step, in their order."""
        if step not in self._ranks:
            self._ranks[step] = rank_records(self.paths, step)
        return self._ranks[step]

    @cached_property
    def ranks_with_logs(self) -> dict[str, set[int]]:
        """The ranks of each step that have a log."""
        try:
            names = os.listdir(self.paths.logs)  # noqa: PTH208 - without a Path for each of thousands
        except OSError:
            return {}
        ranks: dict[str, set[int]] = {}
        for log in filter(None, map(_RANK_LOG.fullmatch, names)):
            ranks.setdefault(log[1], set()).add(int(log[2]))
        return ranks

    @cached_property
    def endpoint(self) -> Endpoint | None:
        """Address of the server; a leader that was killed leaves the file behind."""
        return Endpoint.read(self.paths.endpoint)

    @cached_property
    def stop_request(self) -> StopRequest | None:
        """The request to stop the server."""
        return StopRequest.read(self.paths.stop_request)

    @cached_property
    def renewal(self) -> Renewal | None:
        """The job that serves and the next one (``serve.renew``)."""
        from trtllm_hpc.runtime.renewal import Renewal  # finding a run does not need it

        return Renewal.read(self.paths.renewal)

    @cached_property
    def instances(self) -> list[dict[str, Any]] | None:
        """The instances as the supervisor recorded them last; ``None`` before it starts any.

        Empty if the file is in ``unread``, too.
        """
        unread: Any = []
        try:
            listed = self._read(lambda: read_json(self.paths.instances), unread)
        except ValueError:
            listed = [None]
        if listed is None:
            return None
        if isinstance(listed, list) and all(isinstance(row, dict) and "state" in row for row in listed):
            return listed
        self.unread[self.paths.instances.name] = ""
        return []


def readable_plan(paths: RunPaths) -> PlanRecord:
    """Return a run's plan. Raises RunNotFound if it cannot be read."""
    plan = PlanRecord.read(paths)
    if plan is None:
        raise RunNotFound(f"{paths.plan} is gone or damaged, so nothing is known about this run.")
    return plan
