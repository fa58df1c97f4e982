"""Finding the rank that failed first, and what the logs of a stage show of its failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_hpc.logs.causes.explain import likeliest_first, of_lines
from trtllm_hpc.logs.causes.table import Kind
from trtllm_hpc.logs.facts import LogFacts, logs_facts
from trtllm_hpc.logs.files import LogFile, list_logs, signal_or_code, stage_of
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import STEPS
from trtllm_hpc.runtime.blame import first_to_fail, rank_name, verdict
from trtllm_hpc.runtime.records import RankRecord


@dataclass(frozen=True)
class RankFailure:
    """The rank that died first, and what is known about its end."""

    record: RankRecord
    log: LogFacts
    """Facts of its log."""
    others: str
    """``ended``, ``silent`` (they recorded no end either) or ``running``; ``none`` if it was alone."""
    verdict: str | None = None
    """The reason that another rank recorded for giving this rank up."""

    @property
    def sentence(self) -> str:
        """One sentence for the user."""
        record = self.record
        if self.verdict is not None:
            return self.verdict.rstrip(".")
        if record.ended_at is None and self.others == "silent":
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
        first = "died" if self.others == "none" else "died first"
        sentence = f"{rank_name([record], record.step, record.rank)} {first}: {how}"
        return f"{sentence}; the others ended because of it" if self.others == "ended" else sentence


def first_failure(run: RunSnapshot) -> RankFailure | None:
    """Return the rank of a server that has ended which died first; ``None`` if no record shows a failure."""
    of_instances = ((records, first_to_fail(records)) for records in map(run.ranks, run.serve_steps))
    failed = [(records, first) for records, first in of_instances if first is not None]
    if not failed:
        return None
    records, first = min(failed, key=lambda instance: instance[1].ended_at or 0.0)
    ended = {record.ended_at is not None for record in records if record is not first}
    others = "ended" if ended == {True} else "none" if not ended else "running"
    if ended == {False} and first.ended_at is None:
        others = "silent"
    judge = verdict(records)
    [log] = logs_facts([run.paths.rank_log(first.step, first.rank)])
    return RankFailure(first, log, others, None if judge is None else judge.reason)


def stage_logs(
    run: RunSnapshot, stage: str, first: RankRecord | None = None, servers: Sequence[LogFile] | None = None
) -> list[LogFile]:
    """Return the logs of a stage in the order in which they explain a failure.

    The log of the rank that died first, then those of ranks that failed by themselves, of the other ranks,
    and of the batch script, which only shows that a rank has failed. ``servers`` are the logs of ``serve``,
    if known.
    """
    logs = [
        log
        for step in STEPS
        if stage_of(step) == stage
        for log in (list_logs(run, step) if servers is None or step != "serve" else servers)
    ]

    def order(log: LogFile) -> tuple[bool, bool, bool]:
        is_first = first is not None and (log.step, log.rank) == (first.step, first.rank)
        return (log.rank is None, not is_first, not log.state.startswith("failed"))

    return sorted(logs, key=order)


def stage_error(run: RunSnapshot, stage: str) -> str | None:
    """Return what a stage's logs show of its failure, after the log's name.

    For a stage that failed without a reason in its rank records. It only
    explains: the caller must know that the stage has failed.
    """
    run.use_causes_of_site()
    logs = stage_logs(run, stage)
    facts = logs_facts([log.path for log in logs])
    causes = likeliest_first(of_lines([fact.causes for fact in facts]))
    # That Slurm saw a task killed explains the end of its step.
    killed = (
        cause for cause in causes if cause.id == "slurm-task-failed" and "Exited with" not in cause.match
    )
    cause = next((cause for cause in causes if cause.kind is Kind.ROOT), None) or next(killed, None)
    if cause is not None:
        return next(f"{log.name} says {cause.match!r}" for log in logs if str(log.path) == cause.file)
    named = zip(logs, facts, strict=True)
    return next((f"{log.name} says {fact.first_error!r}" for log, fact in named if fact.first_error), None)
