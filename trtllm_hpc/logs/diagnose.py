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
    """What its log shows."""
    others: str
    """``ended``, ``silent`` (they recorded no end either) or ``running``; ``none`` if it was alone."""
    verdict: str | None = None
    """The reason of the rank that found this one at fault, in a sentence that names it."""

    @property
    def sentence(self) -> str:
        """One sentence for the user."""
        record = self.record
        if self.verdict is not None:
            return self.verdict.rstrip(".")
        if record.ended_at is None and self.others == "silent":
            return f"all {record.world_size} ranks were killed before they could record their end"
        if record.ended_at is None:
            how = "it was killed before it could record its end"
        elif record.exit_code is None:
            how = "its exit code is not known"
        else:
            end = signal_or_code(record.exit_code)
            how = f"killed by {end}" if end.startswith("signal") else end
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
    records, first = min(failed, key=lambda it: it[1].ended_at or 0.0)
    ended = {record.ended_at is not None for record in records if record is not first}
    others = "running"
    if ended <= {True}:
        others = "ended" if ended else "none"
    elif ended == {False} and first.ended_at is None:
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
    names = {str(log.path): log.name for log in logs}
    causes = likeliest_first(of_lines([log.causes for log in facts]))
    # That Slurm saw a task killed explains the end of its step.
    killed = (it for it in causes if it.id == "slurm-task-failed" and "Exited with" not in it.match)
    cause = next((it for it in causes if it.kind is Kind.ROOT), None) or next(killed, None)
    if cause is not None and cause.file is not None:
        return f"{names[cause.file]} says {cause.match!r}"
    said = (
        f"{log.name} says {it.first_error!r}" for log, it in zip(logs, facts, strict=True) if it.first_error
    )
    return next(said, None)
