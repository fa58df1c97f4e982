"""Finding the rank that failed first, and the logs that explain a stage's failure."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_hpc.logs.facts import LogFacts, logs_facts
from trtllm_hpc.logs.files import LogFile, list_logs, signal_or_code, stage_of
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.runtime.blame import first_to_fail, rank_name, verdict
from trtllm_hpc.runtime.records import RankRecord


@dataclass(frozen=True)
class RankFailure:
    """The rank that died first, and what is known about its end."""

    record: RankRecord
    log: LogFacts
    """Facts of its log."""
    others: tuple[RankRecord, ...]
    """The other ranks of its server."""
    verdict: str | None = None
    """The reason that another rank recorded for giving this rank up."""

    @property
    def sentence(self) -> str:
        """One sentence for the user."""
        record = self.record
        if self.verdict is not None:
            return self.verdict.rstrip(".")
        ended = [other.ended_at is not None for other in self.others]
        if record.ended_at is None and ended and not any(ended):
            return f"all {record.world_size} ranks were killed before they could record their end"
        end = signal_or_code(record.exit_code or 0)
        how = f"killed by {end}" if end.startswith("signal") else end
        if record.ended_at is None:
            how = "it was killed before it could record its end"
        elif record.exit_code is None:
            how = "its exit code is not known"
        if record.reason:
            how = f"{how}: {record.reason.rstrip('.')}"
        elif self.log.end is not None:
            how = f"{how}; its log says {self.log.end!r}"
        died = "died first" if self.others else "died"
        sentence = f"{rank_name([record], record.step, record.rank)} {died}: {how}"
        return f"{sentence}; the others ended because of it" if ended and all(ended) else sentence


def first_failure(run: RunSnapshot) -> RankFailure | None:
    """Return the rank of a server that has ended which died first; ``None`` if no record shows a failure."""
    servers = ((records, first_to_fail(records)) for records in map(run.ranks, run.steps("serve")))
    failed = [(first, records) for records, first in servers if first is not None]
    if not failed:
        return None
    first, records = min(failed, key=lambda server: server[0].ended_at or 0.0)
    judge = verdict(records)
    [log] = logs_facts([run.paths.rank_log(first.step, first.rank)])
    others = tuple(record for record in records if record is not first)
    return RankFailure(first, log, others, None if judge is None else judge.reason)


def stage_logs(run: RunSnapshot, stage: str, first: RankRecord | None = None) -> list[LogFile]:
    """Return the logs of a stage in the order in which they explain a failure.

    The log of the rank that died first, then those of ranks that failed by themselves, of the other ranks,
    and of the batch script, which only shows that a rank has failed.
    """

    def order(log: LogFile) -> tuple[bool, bool, bool]:
        is_first = first is not None and (log.step, log.rank) == (first.step, first.rank)
        return (log.rank is None, not is_first, not log.state.startswith("failed"))

    return sorted((log for log in list_logs(run) if stage_of(log.step) == stage), key=order)
