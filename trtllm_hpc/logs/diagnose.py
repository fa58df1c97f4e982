"""Finding the rank that failed first, and why."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_hpc.logs.errors import first_error_line
from trtllm_hpc.logs.files import list_logs, stage_of
from trtllm_hpc.logs.state import failed_by_itself, signal_or_code, stage_end
from trtllm_hpc.paths import STEPS, RunPaths, instance_count, serve_steps
from trtllm_hpc.runtime.records import RankRecord, StopRequest, rank_records

_SAME_MOMENT_S = 3.0
"""Ends closer than this are not ordered by time: they come from different clocks and polls."""


@dataclass(frozen=True)
class RankFailure:
    """The rank that died first, and what is known about its end."""

    record: RankRecord
    error_line: str | None
    """The first error in its log."""
    others: str
    """``ended``, ``silent`` (they recorded no end either) or ``running``; ``none`` if it was alone."""

    @property
    def sentence(self) -> str:
        """One sentence for the user."""
        record = self.record
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
    """The same of one instance.

    A rank that recorded no end although the step is over was killed, and
    before the others, since those still recorded how they ended. Among ranks
    that failed by themselves within a few seconds, one that gives no reason
    comes first: it was killed, and those with a reason had time to notice.
    """
    records = rank_records(paths, step)
    if over is None:
        over = stage_end(paths, stage_of(step)) is not None
    failed = [record for record in records if failed_by_itself(record)]
    silent = [record for record in records if record.ended_at is None]
    if silent and (over or _torn_down(paths, records)):
        return _failure(paths, records, silent[0])
    return _failure(paths, records, _first_of(failed)) if failed else None


def stage_error(paths: RunPaths, stage: str) -> str | None:
    """Return the first error in a stage's logs after the log's name: ranks' logs first, then the script's.

    For a stage that failed without a reason in its rank records. It only
    explains: the caller must know that the stage has failed.
    """
    logs = [log for step in STEPS if stage_of(step) == stage for log in list_logs(paths, step)]
    for log in sorted(logs, key=lambda log: log.rank is None):
        line = first_error_line(log.path)
        if line is not None:
            return f"{log.name} says {line!r}"
    return None


def _first_of(failed: list[RankRecord]) -> RankRecord:
    earliest = min(record.ended_at or 0.0 for record in failed)
    together = [record for record in failed if (record.ended_at or 0.0) <= earliest + _SAME_MOMENT_S]
    return min(together, key=lambda record: (record.reason is not None, record.ended_at, record.rank))


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
    return RankFailure(first, first_error_line(paths.rank_log(first.step, first.rank)), others)
