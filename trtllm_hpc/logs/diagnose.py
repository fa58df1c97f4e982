"""Finding the rank that failed first, and why."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtllm_hpc.logs.causes.explain import Finding, ranked
from trtllm_hpc.logs.causes.table import Kind, causes
from trtllm_hpc.logs.errors import LATE_LINES, late_error_line
from trtllm_hpc.logs.facts import begin_reading, log_facts, logs_facts
from trtllm_hpc.logs.files import LogFile, list_logs, stage_of
from trtllm_hpc.logs.state import signal_or_code, stage_end
from trtllm_hpc.paths import STEPS, RunPaths, instance_count, serve_steps
from trtllm_hpc.runtime.blame import failed_by_itself, first_to_fail, verdict
from trtllm_hpc.runtime.records import RankRecord, StopRequest, rank_records

_RANK_LOG = re.compile(r"([a-z]+(?:\.\d+)?)_\d+\.out")


@dataclass(frozen=True)
class RankFailure:
    """The rank that died first, and what is known about its end."""

    record: RankRecord
    error_line: str | None
    """What its log tells about its end."""
    others: str
    """``ended``, ``silent`` (they recorded no end either) or ``running``; ``none`` if it was alone."""
    told: str | None = None
    """What the rank says that found it at fault, in a sentence that names it."""

    @property
    def sentence(self) -> str:
        """One sentence for the user."""
        record = self.record
        if self.told is not None:
            return self.told.rstrip(".")
        if record.ended_at is None and self.others == "silent":
            return f"all {record.world_size} ranks were killed before they could record their end"
        first = "died" if self.others == "none" else "died first"
        instance = record.step.partition(".")[2]
        name = f"rank {record.rank}{f' of instance {instance}' if instance else ''}"
        sentence = f"{name} on {record.host} {first}: {self._how()}"
        return f"{sentence}; the others ended because of it" if self.others == "ended" else sentence

    def _how(self) -> str:
        record = self.record
        if record.ended_at is None:
            how = "it was killed before it could record its end"
        elif record.exit_code is None:
            how = "its exit code is not known"
        else:
            end = signal_or_code(record.exit_code)
            how = f"killed by {end}" if end.startswith("signal") else end
        if record.reason:
            return f"{how}: {record.reason.rstrip('.')}"
        return f"{how}; its log says {self.error_line!r}" if self.error_line else how


def first_failure(
    paths: RunPaths, *, step: str | None = None, over: bool | None = None
) -> RankFailure | None:
    """Return the rank that died first; ``None`` if no rank record shows a failure.

    Args:
        step: among the ranks of this step; ``None``: of all instances of the server.
        over: whether the job has ended, if the caller knows it from Slurm; by default
            the stage's events decide, or that another rank was ended by a signal.
    """
    steps = serve_steps(instance_count(paths)) if step is None else [step]
    failures = [failure for one in steps if (failure := _first_failure_of(paths, one, over)) is not None]
    return min(failures, key=lambda failure: failure.record.ended_at or 0.0, default=None)


def _first_failure_of(paths: RunPaths, step: str, over: bool | None) -> RankFailure | None:
    """The same of one instance."""
    records = rank_records(paths, step)
    if over is None:
        over = stage_end(paths, stage_of(step)) is not None
    first = first_to_fail(records, over=over or _torn_down(paths, records))
    if first is None:
        return None
    judge = verdict(records)
    found = _failure(paths, records, first)
    return found if judge is None else replace(found, told=judge.reason)


def stage_logs(
    paths: RunPaths, stage: str, first: RankRecord | None = None, servers: Sequence[LogFile] | None = None
) -> list[LogFile]:
    """Return the logs of a stage in the order in which they explain a failure.

    The log of the rank that died first, then those of ranks that failed by themselves, of the other ranks,
    and of the batch script, which only tells that a rank has failed. ``servers`` are the logs of ``serve``,
    if known.
    """
    logs = [
        log
        for step in STEPS
        if stage_of(step) == stage
        for log in (list_logs(paths, step) if servers is None or step != "serve" else servers)
    ]

    def order(log: LogFile) -> tuple[bool, bool, bool]:
        is_first = first is not None and (log.step, log.rank) == (first.step, first.rank)
        return (log.rank is None, not is_first, not log.state.startswith("failed"))

    return sorted(logs, key=order)


def begin_reading_stage(paths: RunPaths, stage: str) -> None:
    """Have other processes read the logs of a stage's ranks, if they are large, while the caller goes on."""
    try:
        names = os.listdir(paths.logs)  # noqa: PTH208 - without a Path for each of thousands
    except OSError:
        return
    mine = (name for name in names if (log := _RANK_LOG.fullmatch(name)) and stage_of(log[1]) == stage)
    begin_reading([paths.logs / name for name in sorted(mine)])


def stage_error(paths: RunPaths, stage: str) -> str | None:
    """Return what a stage's logs tell about its failure, after the log's name.

    For a stage that failed without a reason in its rank records. It only
    explains: the caller must know that the stage has failed.
    """
    logs = stage_logs(paths, stage)
    facts = logs_facts([log.path for log in logs])
    causes_of = {str(log.path): log for log in logs}
    found = ranked([it.causes for it in facts])
    for one in (*(one for one in found if one.kind is Kind.ROOT), *filter(_tells_a_signal, found)):
        if one.file is not None:
            return f"{causes_of[one.file].name} says {one.match!r}"
    for log, it in zip(logs, facts, strict=True):
        if it.first_error is not None:
            return f"{log.name} says {it.first_error!r}"
    return None


def _tells_a_signal(one: Finding) -> bool:
    """Return whether Slurm says that a task was killed, which explains the end of its step."""
    return one.id == "slurm-task-failed" and "Exited with" not in one.match


def _torn_down(paths: RunPaths, records: list[RankRecord]) -> bool:
    """Return whether ranks were ended by an unrequested signal, and none failed by itself."""
    if StopRequest.read(paths.stop_request) is not None or any(map(failed_by_itself, records)):
        return False
    return any((record.stopped_by or "").startswith("SIG") for record in records)


def _failure(paths: RunPaths, records: list[RankRecord], first: RankRecord) -> RankFailure:
    ended = [record.ended_at is not None for record in records if record is not first]
    if not ended:
        others = "none"
    elif all(ended):
        others = "ended"
    else:
        others = "silent" if first.ended_at is None and not any(ended) else "running"
    return RankFailure(first, _told(paths.rank_log(first.step, first.rank)), others)


def _told(path: Path) -> str | None:
    """Return the line of a rank's log that tells why it ended, if there is one near its end."""
    for one in ranked([log_facts(path).causes]):
        if ends_a_process(one) and is_late(one):
            return one.match
    return late_error_line(path)


def ends_a_process(one: Finding) -> bool:
    """Return whether a cause is a root cause, and not of a single request."""
    cause = causes().get(one.id)
    return one.kind is Kind.ROOT and (cause is None or cause.fatal)


def is_late(one: Finding) -> bool:
    """Return whether a cause stands near the end of its log, so that it can be that of the end."""
    if one.file is None or one.line is None:
        return True
    with Path(one.file).open("rb") as log:
        return (
            sum(block.count(b"\n") for block in iter(lambda: log.read(1 << 20), b"")) - one.line < LATE_LINES
        )
