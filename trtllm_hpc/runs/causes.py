"""The cause of a run's failure: from Slurm's state, the ranks' records, and all its logs together."""

from __future__ import annotations

import io
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trtllm_hpc.errors import FAIL
from trtllm_hpc.logs.causes.explain import Finding, findings, ranked
from trtllm_hpc.logs.causes.scan import scan
from trtllm_hpc.logs.causes.table import Cause, Kind, cause_of_state, causes
from trtllm_hpc.logs.diagnose import RankFailure, ends_a_process, is_late, stage_logs
from trtllm_hpc.logs.facts import logs_facts
from trtllm_hpc.logs.files import LogFile
from trtllm_hpc.logs.reading import decode, lines_of, seek_last_lines
from trtllm_hpc.logs.state import signal_or_code
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.runtime.checks import disk_space
from trtllm_hpc.scheduler.states import NO_OUTPUT_FILE

UNKNOWN = "unknown"
REPORTED = "reported"
"""Ids of findings that are no entry of the table: nothing matched; the job itself said why it ended."""

_LAST_LINES = 5
_ERROR, _NEXT = "error: ", "next: "
"""How programs of this package begin an error, and the advice in the line after it."""


def causes_of(
    paths: RunPaths,
    stage: str,
    *,
    state: str,
    exit_signal: int | None = None,
    first: RankFailure | None = None,
    reported: str | None = None,
    servers: Sequence[LogFile] | None = None,
) -> tuple[Finding, ...]:
    """Return why a stage failed, the likeliest cause first; never empty.

    ``state`` and ``exit_signal`` of its job are Slurm's, ``reported`` is the job's own reason, ``first`` the
    rank that died first, and ``servers`` are the logs of the step ``serve``, if the caller has listed them.
    """
    logs = stage_logs(paths, stage, None if first is None else first.record, servers)
    facts = logs_facts([log.path for log in logs])
    found = list(ranked([it.causes for it in facts]))
    first_log = None if first is None else paths.rank_log(first.record.step, first.record.rank)
    own = _own_death(first, [one for one in found if first_log is not None and one.file == str(first_log)])
    if own is not None:
        # Another rank's or an old line does not explain why this one was killed, unless Slurm says so.
        told_by_slurm = [one for one in found if one.id.startswith("slurm-") and one.kind is Kind.ROOT]
        rest = [one for one in found if one not in told_by_slurm]
        found = [*told_by_slurm, own, *rest]
    if reported is not None:
        said = _said(paths, stage, reported)
        precise = [one for one in found if ends_a_process(one) and not _is_generic(one)]
        if said.id not in {one.id for one in precise}:
            found = [*precise, said, *(one for one in found if one not in precise and one.id != said.id)]
    elif not any(one.kind is Kind.ROOT for one in found):
        own_words = next(
            (
                it
                for log, one in zip(logs, facts, strict=True)
                if (it := _own_error(paths, log, one.first_error))
            ),
            None,
        )
        found = [*([own_words] if own_words is not None else []), *found]
    full = disk_space(os.uname().nodename, "the run folder", paths.folder)
    if full.state == FAIL and full.hint is not None:
        # Then neither logs nor events could be written.
        now = Finding("disk-full", Kind.ROOT, _sentence(full.message), full.hint, None, None, None, "")
        found = [now, *(one for one in found if one.id != now.id)]
    if exit_signal in set(signal.Signals) and not any(one.kind is Kind.ROOT for one in found):
        groups = {"signal": f"signal {exit_signal}"}
        found = [_told_by_none(causes()["batch-script-killed"], groups, None), *found]
    by_slurm = _of_state(state, exit_signal)
    if by_slurm is not None:
        found = [by_slurm, *(one for one in found if one.id != by_slurm.id)]
    return tuple(found) or (_unknown(paths, logs),)


def _said(paths: RunPaths, stage: str, reported: str) -> Finding:
    """Return the reason that the job has given; the table says what to do if it has one like that."""
    known = [one for one in findings(scan(io.BytesIO(reported.encode())), "") if one.kind is Kind.ROOT]
    following = f"trtllm-hpc logs {call_name(paths)} --stage {stage}"
    said = Finding(REPORTED, Kind.ROOT, _sentence(reported), following, None, None, None, "")
    return replace(said, id=known[0].id, next=known[0].next, rank=known[0].rank) if known else said


def _own_error(paths: RunPaths, log: LogFile, line: str | None) -> Finding | None:
    """Return what a program of ours has told as its error, with its advice; ``None`` for any other line."""
    told = (line or "").removeprefix(_ERROR)
    if not told or told == line:
        return None
    with suppress(OSError), log.path.open("rb") as file:
        lines = map(decode, lines_of(file))
        number = next((number for number, one in enumerate(lines, start=1) if one.strip() == line), None)
        advice = next(lines, "").strip()
        following = advice.removeprefix(_NEXT) if advice.startswith(_NEXT) else _look_at(paths, log)
        return Finding(REPORTED, Kind.ROOT, _sentence(told), following, str(log.path), number, log.rank, told)
    return None


def _look_at(paths: RunPaths, log: LogFile) -> str:
    """Return the command that shows the end of a log."""
    options = f"--stage {log.step.partition('.')[0]}" if log.rank is None else f"--rank {log.rank}"
    if log.rank is not None and log.step != "serve":
        options = f"--stage {log.step.partition('.')[0]} {options}"
    return f"trtllm-hpc logs {call_name(paths)} {options} --tail 50"


def _own_death(first: RankFailure | None, told: list[Finding]) -> Finding | None:
    """Return that a rank was killed from outside, if its own log does not tell why."""
    if first is None or first.record.reason is not None or first.told is not None:
        return None
    if any(ends_a_process(one) and is_late(one) for one in told):
        return None
    record = first.record
    groups = {"rank": str(record.rank), "host": record.host or "its node"}
    if record.ended_at is None:
        cause = causes()["rank-silent"]
    elif record.exit_code is not None and signal_or_code(record.exit_code).startswith("signal"):
        cause, groups["signal"] = causes()["rank-killed"], signal_or_code(record.exit_code)
    else:
        return None
    return _told_by_none(cause, groups, record.rank)


def _of_state(state: str, exit_signal: int | None) -> Finding | None:
    cause = causes()["slurm-output-file"] if exit_signal == NO_OUTPUT_FILE else cause_of_state(state)
    return None if cause is None else _told_by_none(cause, {}, None)


def _told_by_none(cause: Cause, groups: dict[str, str], rank: int | None) -> Finding:
    sentence, following = (cause.told(text, groups) for text in (cause.sentence, cause.next))
    return Finding(cause.id, cause.kind, sentence, following, None, None, rank, "")


def _is_generic(one: Finding) -> bool:
    cause = causes().get(one.id)
    return cause is not None and cause.generic


def _unknown(paths: RunPaths, logs: list[LogFile]) -> Finding:
    """Return that no log tells a known cause, with the last lines of the one that may say most."""
    log = next((log for log in logs if log.size_bytes), None)
    if log is None:
        sentence = "The job has written no log."
        following = f"trtllm-hpc status {call_name(paths)}; `sacct -j JOB` knows where it ran"
        return Finding(UNKNOWN, Kind.ROOT, sentence, following, None, None, None, "")
    return Finding(
        UNKNOWN,
        Kind.ROOT,
        f"Not known: the logs tell no cause that is in the table. The last lines of {log.name}:",
        _look_at(paths, log),
        str(log.path),
        None,
        log.rank,
        "\n".join(_last_lines(log.path)),
    )


def _last_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as log:
            seek_last_lines(log, 4 * _LAST_LINES)
            written = (decode(line)[:300] for line in lines_of(log))
            return list(deque((line for line in written if line.strip()), maxlen=_LAST_LINES))
    except OSError:
        return []


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
