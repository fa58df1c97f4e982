"""Which rank broke first, and why."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_hpc.logs.errors import first_error_line
from trtllm_hpc.logs.files import list_logs, stage_of
from trtllm_hpc.logs.state import failed_by_itself, signal_or_code, stage_end
from trtllm_hpc.paths import STEPS, RunPaths
from trtllm_hpc.runtime.records import RankRecord, StopRequest

_SAME_MOMENT_S = 3.0
"""Ends this close are not told apart by time: they come from different clocks and polls."""


@dataclass(frozen=True)
class RankFailure:
    """The rank that died first, and what is known of its end."""

    step: str
    rank: int
    host: str
    world_size: int
    exit_code: int | None
    """``None``: it could not say; negative: a signal."""
    ended_at: float | None
    reason: str | None
    """The rank's own sentence."""
    error_line: str | None
    """The first error in its log."""
    others: str
    """``ended``, ``silent`` (killed without a word, too) or ``running``; ``none`` if it was alone."""

    @property
    def sentence(self) -> str:
        """One sentence for a person."""
        if self.ended_at is None and self.others == "silent":
            return f"all {self.world_size} ranks were killed before they could write a word"
        first = "died" if self.others == "none" else "died first"
        sentence = f"rank {self.rank} on {self.host} {first}: {self._how()}"
        return f"{sentence}; the others ended because of it" if self.others == "ended" else sentence

    def _how(self) -> str:
        if self.ended_at is None:
            how = "it was killed before it could write a word"
        elif self.exit_code is None:
            how = "its exit code is not known"
        else:
            words = signal_or_code(self.exit_code)
            how = f"killed by {words}" if words.startswith("signal") else words
        if self.reason:
            return f"{how}: {self.reason.rstrip('.')}"
        return f"{how}; its log says {self.error_line!r}" if self.error_line else how


def first_failure(paths: RunPaths, *, step: str = "serve", over: bool | None = None) -> RankFailure | None:
    """The rank of a step that died first; ``None`` if none did, as far as the ranks say.

    A rank that wrote no end although the step is over was killed outright, and
    so before the others: each of those still wrote how it ended. Among ranks
    that failed by themselves within a few seconds, one that gives no reason
    comes first: it was killed, and those with a reason had time to notice.

    Args:
        over: whether the job has ended, if the caller knows (from Slurm); else
            the stage's events tell, or that another rank was ended by a signal.
    """
    records = _records(paths, step)
    if over is None:
        over = stage_end(paths, stage_of(step)) is not None
    failed = [record for record in records if failed_by_itself(record)]
    silent = [record for record in records if record.ended_at is None]
    if silent and (over or _torn_down(paths, records)):
        return _failure(paths, records, silent[0])
    return _failure(paths, records, _first_of(failed)) if failed else None


def stage_error(paths: RunPaths, stage: str) -> str | None:
    """The first error in a stage's logs, the log named before it: the ranks' logs, then the script's own.

    For a stage that failed where no rank record says why. It explains; that
    the stage has failed must be known from elsewhere.
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
    """Whether others were ended by a signal that nobody had asked for, and none failed by itself."""
    if StopRequest.read(paths.stop_request) is not None or any(map(failed_by_itself, records)):
        return False
    return any((record.stopped_by or "").startswith("SIG") for record in records)


def _records(paths: RunPaths, step: str) -> list[RankRecord]:
    found = [RankRecord.read(path) for path in paths.ranks.glob(f"{step}_*.json")]
    return sorted((record for record in found if record is not None), key=lambda record: record.rank)


def _failure(paths: RunPaths, records: list[RankRecord], first: RankRecord) -> RankFailure:
    return RankFailure(
        step=first.step,
        rank=first.rank,
        host=first.host,
        world_size=first.world_size,
        exit_code=first.exit_code,
        ended_at=first.ended_at,
        reason=first.reason,
        error_line=first_error_line(paths.rank_log(first.step, first.rank)),
        others=_others([record for record in records if record.rank != first.rank], first),
    )


def _others(records: list[RankRecord], first: RankRecord) -> str:
    if not records:
        return "none"
    ended = [record.ended_at is not None for record in records]
    if all(ended):
        return "ended"
    return "silent" if first.ended_at is None and not any(ended) else "running"
