"""The cause of a run's failure: from Slurm's state, the ranks' records, and all its logs together."""

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
    findings,
    likeliest_first,
    of_lines,
)
from trtllm_hpc.logs.causes.table import Cause, Degree, Kind, causes
from trtllm_hpc.logs.diagnose import RankFailure, stage_logs
from trtllm_hpc.logs.facts import logs_facts, scan
from trtllm_hpc.logs.files import LogFile, signal_or_code
from trtllm_hpc.logs.reading import last_lines
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.runtime.checks import disk_space
from trtllm_hpc.runtime.ending import UNREQUESTED
from trtllm_hpc.scheduler.states import INTERRUPTED, NO_OUTPUT_FILE

UNKNOWN = "unknown"
"""Id of the finding that nothing in the table of causes matches."""

_LAST_LINES = 5


@dataclass(frozen=True)
class StageFailure:
    """The failed stage that decides a run's state, and what the run's own files show of it."""

    stage: str
    """The stage whose logs explain it: ``companion`` if that failed within the job of the server."""
    state: str
    """Slurm's name of the state."""
    exit_signal: int | None
    job_id: str | None
    first: RankFailure | None
    """The rank that died first, if a rank is the cause."""
    reported: str | None
    """The reason that the stage's job, or its submission, has recorded."""
    next: str | None = None
    """What to do about it, if that is recorded too."""


def causes_of(run: RunSnapshot, failure: StageFailure, servers: Sequence[LogFile]) -> tuple[Finding, ...]:
    """Return why a stage failed, the likeliest cause first; never empty.

    ``servers`` are the logs of the step ``serve``.
    """
    run.use_causes_of_site()
    first, exit_signal = failure.first, failure.exit_signal
    reported = failure.reported or (None if first is None else first.verdict or first.record.reason)
    logs = stage_logs(run, failure.stage, None if first is None else first.record, servers)
    facts = logs_facts([log.path for log in logs])
    own_lines = {(it.own_error.file, it.own_error.line) for it in facts if it.own_error is not None}
    candidates = [
        it
        for it in of_lines([log.causes for log in facts])
        if it.certainty is not Certainty.FIRST_ERROR or (it.finding.file, it.finding.line) not in own_lines
    ]
    # A rank without a record may only be late; the reason that the job has given says more.
    late = failure.reported is not None and first is not None and first.record.ended_at is None
    if (killed := None if late else _killed(first)) is not None:
        # Another rank's or an old line does not explain why this one was killed, unless Slurm wrote it; a
        # controller that does not answer kills nobody.
        for place, it in enumerate(candidates):
            by_slurm = it.finding.id.startswith("slurm-") and it.finding.id != "slurm-controller"
            if by_slurm and it.finding.kind is Kind.ROOT:
                candidates[place] = replace(it, certainty=Certainty.SLURM_LINE)
        candidates.append(Candidate(killed, Certainty.RANK_KILLED))
    is_cause = reported is not None and not reported.rstrip(".").endswith(UNREQUESTED)
    if reported is not None:
        said = _said(run.paths, failure.stage, reported, [it.own_error for it in facts])
        said = replace(said, next=failure.next or said.next)
        if not is_cause:
            said = replace(said, kind=Kind.CONSEQUENCE, degree=Degree.FIRST_ERROR)
        candidates.append(Candidate(said, Certainty.REPORTED if is_cause else Certainty.END))
    if not is_cause and not _has_root(candidates):
        own = next(((log, it.own_error) for log, it in zip(logs, facts, strict=True) if it.own_error), None)
        if own is not None:
            log, error = own
            advised = error if error.next else replace(error, next=_look_at(run.paths, log))
            candidates.append(Candidate(advised, Certainty.REPORTED))
    full = disk_space(os.uname().nodename, "the run folder", run.paths.folder)
    if full is not None and full.hint is not None:
        now = Finding.without_log("disk-full", full.message, full.hint)
        candidates.append(Candidate(now, Certainty.FULL_DISK))
    if exit_signal in set(signal.Signals) and not _has_root(candidates):
        script = _without_log(causes()["batch-script-killed"], {"signal": f"signal {exit_signal}"})
        candidates.append(Candidate(script, Certainty.JOB_STATE))
    no_output = exit_signal == NO_OUTPUT_FILE
    of_states = (it for it in causes().values() if failure.state in it.states)
    if of_state := causes()["slurm-output-file"] if no_output else next(of_states, None):
        candidates.append(Candidate(_without_log(of_state, {}), Certainty.JOB_STATE))
    if not candidates and failure.state == INTERRUPTED.name:
        following = f"trtllm-hpc resume {call_name(run.paths)} --wait submits its scripts"
        return (Finding.without_log(UNKNOWN, "The submission was interrupted.", following),)
    return likeliest_first(candidates) or (_unknown(run.paths, logs, failure.job_id),)


def _has_root(candidates: Sequence[Candidate]) -> bool:
    """Return whether a line says more than that it is an error."""
    found = (candidate.finding for candidate in candidates)
    return any(it.kind is Kind.ROOT and it.degree is not Degree.FIRST_ERROR for it in found)


def _killed(first: RankFailure | None) -> Finding | None:
    """Return that a rank was killed from outside, if its own log does not show why."""
    if first is None or first.verdict is not None or first.log.late_cause is not None:
        return None
    record = first.record
    groups = {"rank": str(record.rank), "host": record.host or "its node"}
    if record.reason is not None:
        return None
    if record.ended_at is None:
        return _without_log(causes()["rank-silent"], groups, record.rank)
    end = "" if record.exit_code is None else signal_or_code(record.exit_code)
    if not end.startswith("signal"):
        return None
    return _without_log(causes()["rank-killed"], groups | {"signal": end}, record.rank)


def _without_log(cause: Cause, groups: dict[str, str], rank: int | None = None) -> Finding:
    sentence, following = (cause.told(text, groups) for text in (cause.sentence, cause.next))
    return Finding(cause.id, cause.kind, sentence, following, None, None, rank, "")


def _said(paths: RunPaths, stage: str, reported: str, errors: Sequence[Finding | None]) -> Finding:
    """Return the reason that the job has given, with what to do by the table, or by one of these errors."""
    said = Finding.without_log(REPORTED, reported, f"trtllm-hpc logs {call_name(paths)} --stage {stage}")
    advice = {it.sentence.rstrip("."): it.next for it in errors if it is not None and it.next}
    said = replace(said, next=advice.get(said.sentence.rstrip("."), said.next))
    lines = findings(scan(io.BytesIO(reported.encode())), "")
    known = next((it for it in lines if it.kind is Kind.ROOT and it.degree is not Degree.FIRST_ERROR), None)
    return said if known is None else replace(said, id=known.id, next=known.next, rank=known.rank)


def _look_at(paths: RunPaths, log: LogFile) -> str:
    """Return the command that shows the end of a log."""
    stage = f" --stage {log.step.partition('.')[0]}" if log.rank is None or log.step != "serve" else ""
    rank = "" if log.rank is None else f" --rank {log.rank}"
    return f"trtllm-hpc logs {call_name(paths)}{stage}{rank} --tail 50"


def _unknown(paths: RunPaths, logs: list[LogFile], job_id: str | None) -> Finding:
    """Return that no log shows a known cause, with the last lines of the log that may show most."""
    log = next((log for log in logs if log.size_bytes), None)
    if log is None:
        following = f"sacct -j {job_id} shows where it ran" if job_id else f"ls {paths.logs}"
        return Finding.without_log(UNKNOWN, "The job has written no log", following)
    lines = [line[:300] for line in last_lines(log.path, 4 * _LAST_LINES) if line.strip()]
    sentence = f"Not known: no line of the logs names a cause. The last lines of {log.name}:"
    text = "\n".join(lines[-_LAST_LINES:])
    return Finding(UNKNOWN, Kind.ROOT, sentence, _look_at(paths, log), str(log.path), None, log.rank, text)
