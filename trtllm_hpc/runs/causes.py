"""The cause of a run's failure, from Slurm's state, the ranks' records and all logs together."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trtllm_hpc.logs.causes.explain import (
    REPORTED,
    Candidate,
    Certainty,
    Finding,
    capitalised,
    likeliest_first,
    of_lines,
)
from trtllm_hpc.logs.causes.table import Degree, Kind, causes
from trtllm_hpc.logs.diagnose import RankFailure, stage_logs
from trtllm_hpc.logs.facts import facts_of_stream, logs_facts
from trtllm_hpc.logs.files import LogFile, signal_or_code
from trtllm_hpc.logs.reading import last_lines
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.runtime.checks import disk_space
from trtllm_hpc.runtime.ending import UNREQUESTED
from trtllm_hpc.scheduler.states import INTERRUPTED, NO_OUTPUT_FILE

UNKNOWN = "unknown"
"""ID of the finding for a failure that matches no entry of the table of causes."""

_LAST_LINES = 5


@dataclass(frozen=True)
class StageFailure:
    """The failed stage that decides a run's state, and the facts about it in the run's own files."""

    stage: str
    """The stage whose logs explain the failure: ``companion`` if the companion failed in the server's job."""
    state: str
    """Slurm's name of the state."""
    exit_signal: int | None
    """The number that Slurm shows beside the exit code: a signal, or 53, 125."""
    job_id: str | None
    first: RankFailure | None
    """The rank that died first, if a rank is the cause."""
    reported: str | None
    """The reason that the stage's job, or its submission, has recorded."""
    next: str | None = None
    """The recorded advice, if any."""


def causes_of(run: RunSnapshot, failure: StageFailure) -> tuple[Finding, ...]:
    """Return the possible causes of a stage's failure, the likeliest first; never empty."""
    run.use_causes_of_site()
    first, exit_signal = failure.first, failure.exit_signal
    reported = failure.reported or (None if first is None else first.verdict or first.record.reason)
    logs = stage_logs(run, failure.stage, None if first is None else first.record)
    facts = logs_facts([log.path for log in logs])
    own_lines = {(log.own_error.file, log.own_error.line) for log in facts if log.own_error is not None}
    candidates = [
        candidate
        for candidate in of_lines([log.causes for log in facts])
        if candidate.certainty is not Certainty.FIRST_ERROR
        or (candidate.finding.file, candidate.finding.line) not in own_lines
    ]
    # A rank without a recorded end may only be late, so a reason recorded by the job counts more.
    late = failure.reported is not None and first is not None and first.record.ended_at is None
    if (killed := None if late else _killed(first)) is not None:
        # A line of another rank, or an old line, does not explain why this rank was killed, unless Slurm
        # wrote it. "slurm-controller" is excluded: a controller that does not answer kills no rank.
        for place, candidate in enumerate(candidates):
            finding = candidate.finding
            by_slurm = finding.id.startswith("slurm-") and finding.id != "slurm-controller"
            if by_slurm and finding.kind is Kind.ROOT:
                candidates[place] = replace(candidate, certainty=Certainty.SLURM_LINE)
        candidates.append(Candidate(killed, Certainty.RANK_KILLED))
    is_cause = reported is not None and not reported.rstrip(".").endswith(UNREQUESTED)
    if reported is not None:
        recorded = _recorded(run.paths, failure.stage, reported, [log.own_error for log in facts])
        recorded = replace(recorded, next=failure.next or recorded.next)
        if not is_cause:
            recorded = replace(recorded, kind=Kind.CONSEQUENCE, degree=Degree.FIRST_ERROR)
        candidates.append(Candidate(recorded, Certainty.REPORTED if is_cause else Certainty.END))
    if not is_cause and not _has_root(candidates):
        own_errors = ((log, fact.own_error) for log, fact in zip(logs, facts, strict=True) if fact.own_error)
        if (own := next(own_errors, None)) is not None:
            log, error = own
            advised = error if error.next else replace(error, next=_look_at(run.paths, log))
            candidates.append(Candidate(advised, Certainty.REPORTED))
    full = disk_space(os.uname().nodename, "the run folder", run.paths.folder)
    if full is not None and full.hint is not None:
        now = Finding("disk-full", Kind.ROOT, capitalised(full.message), full.hint)
        candidates.append(Candidate(now, Certainty.FULL_DISK))
    if exit_signal in set(signal.Signals) and not _has_root(candidates):
        script = Finding.of(causes()["batch-script-killed"], {"signal": f"signal {exit_signal}"})
        candidates.append(Candidate(script, Certainty.JOB_STATE))
    no_output = exit_signal == NO_OUTPUT_FILE
    state_causes = (cause for cause in causes().values() if failure.state in cause.states)
    if state_cause := causes()["slurm-output-file"] if no_output else next(state_causes, None):
        candidates.append(Candidate(Finding.of(state_cause, {}), Certainty.JOB_STATE))
    if not candidates and failure.state == INTERRUPTED.name:
        following = f"trtllm-hpc resume {call_name(run.paths)} --wait submits its scripts"
        return (Finding(UNKNOWN, Kind.ROOT, "The submission was interrupted.", following),)
    return likeliest_first(candidates) or (_unknown(run.paths, logs, failure.job_id),)


def _has_root(candidates: Sequence[Candidate]) -> bool:
    """Return whether a candidate is a recognised cause, and not merely a first error."""
    findings = (candidate.finding for candidate in candidates)
    return any(finding.kind is Kind.ROOT and finding.degree is not Degree.FIRST_ERROR for finding in findings)


def _killed(first: RankFailure | None) -> Finding | None:
    """Return a finding if the rank was killed from outside and its own log does not show why."""
    if first is None or first.verdict is not None or first.log.late_cause is not None:
        return None
    record = first.record
    groups = {"rank": str(record.rank), "host": record.host or "its node"}
    if record.reason is not None:
        return None
    if record.ended_at is None:
        return Finding.of(causes()["rank-silent"], groups, record.rank)
    end = "" if record.exit_code is None else signal_or_code(record.exit_code)
    if not end.startswith("signal"):
        return None
    return Finding.of(causes()["rank-killed"], groups | {"signal": end}, record.rank)


def _recorded(paths: RunPaths, stage: str, reported: str, errors: Sequence[Finding | None]) -> Finding:
    """Return the job's recorded reason as a finding, with advice from the table or from one of ``errors``."""
    following = f"trtllm-hpc logs {call_name(paths)} --stage {stage}"
    recorded = Finding(REPORTED, Kind.ROOT, capitalised(reported), following)
    advice = {error.sentence.rstrip("."): error.next for error in errors if error is not None and error.next}
    recorded = replace(recorded, next=advice.get(recorded.sentence.rstrip("."), recorded.next))
    known = (
        finding
        for finding in facts_of_stream(io.BytesIO(reported.encode()), "").causes
        if finding.kind is Kind.ROOT and finding.degree is not Degree.FIRST_ERROR
    )
    if (cause := next(known, None)) is None:
        return recorded
    return replace(recorded, id=cause.id, next=cause.next, rank=cause.rank)


def _look_at(paths: RunPaths, log: LogFile) -> str:
    """Return the command that shows the end of a log."""
    stage = f" --stage {log.step.partition('.')[0]}" if log.rank is None or log.step != "serve" else ""
    rank = "" if log.rank is None else f" --rank {log.rank}"
    return f"trtllm-hpc logs {call_name(paths)}{stage}{rank} --tail 50"


def _unknown(paths: RunPaths, logs: list[LogFile], job_id: str | None) -> Finding:
    """Return the finding that no log shows a known cause, with the last lines of the most telling log."""
    log = next((log for log in logs if log.size_bytes), None)
    if log is None:
        following = f"sacct -j {job_id} shows where it ran" if job_id else f"ls {paths.logs}"
        return Finding(UNKNOWN, Kind.ROOT, "The job has written no log.", following)
    lines = [line[:300] for line in last_lines(log.path, 4 * _LAST_LINES) if line.strip()]
    sentence = f"Not known: no line of the logs names a cause. The last lines of {log.name}:"
    text = "\n".join(lines[-_LAST_LINES:])
    return Finding(UNKNOWN, Kind.ROOT, sentence, _look_at(paths, log), str(log.path), None, log.rank, text)
