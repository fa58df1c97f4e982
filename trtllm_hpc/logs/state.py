"""The states of ranks and stages, from their own records and events."""

from __future__ import annotations

import signal

from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import STAGES
from trtllm_hpc.runtime.blame import failed_by_itself
from trtllm_hpc.runtime.records import Event, RankRecord

RUNNING = "running"
NO_RECORD = "no record"
NEVER_STARTED = "never started"
SILENT = "ended without a record"
CANCELLED = "cancelled"

_OTHER_ENDS = {"stage_cancelled": CANCELLED, "submission_interrupted": "refused (half submitted)"}
"""Events other than ``stage_end`` after which a stage is over."""


def last_mark(run: RunSnapshot, stage: str) -> Event | None:
    """Return the last event that shows whether a stage has begun, has ended or never begins."""
    marks = [event for event in run.events(stage) if event.name.startswith(("stage_", "submission_"))]
    return marks[-1] if marks else None


def stage_end(run: RunSnapshot, stage: str) -> Event | None:
    """Return the event that ended a stage, unless a later job has begun the stage again."""
    mark = last_mark(run, stage)
    return mark if mark is not None and mark.name != "stage_begin" else None


def stage_over(run: RunSnapshot, stage: str) -> bool:
    """Return whether a stage has ended, or can no longer start because an earlier stage failed."""
    if stage_end(run, stage) is not None:
        return True
    earlier = [stage_end(run, name) for name in STAGES[: STAGES.index(stage)]]
    failed = any(end is not None and end.data.get("exit_code") != 0 for end in earlier)
    return failed and not run.events(stage)


def stage_state(run: RunSnapshot, stage: str) -> str:
    """Return the state of a stage's batch script."""
    end = stage_end(run, stage)
    if end is None:
        if run.events(stage):
            return RUNNING
        return NEVER_STARTED if stage_over(run, stage) else NO_RECORD
    begun = [event.time for event in run.events(stage) if event.name == "stage_begin"]
    if end.name == "stage_cancelled" and not begun:
        return NEVER_STARTED
    if _was_cancelled(run, stage, end, max(begun, default=0.0)):
        return CANCELLED
    return _OTHER_ENDS.get(end.name) or exit_text(end.data.get("exit_code"))


def _was_cancelled(run: RunSnapshot, stage: str, end: Event, begun_at: float) -> bool:
    """Return whether ``cancel`` ended a stage; its script may have recorded an end of its own after that."""
    if any(event.name == "stage_cancelled" and event.time >= begun_at for event in run.events(stage)):
        return True
    request = run.stop_request
    requested = (
        request is not None and request.by == "cancel" and begun_at <= request.requested_at <= end.time
    )
    return requested and end.data.get("exit_code") != 0


def rank_state(record: RankRecord | None, stage_over: bool) -> str:
    """Return the state of a rank; ``stage_over``: its batch script has ended."""
    if record is None:
        return NO_RECORD
    if record.ended_at is None:
        return SILENT if stage_over else RUNNING
    if record.stopped_by is not None:
        return f"stopped by {record.stopped_by}"
    if record.exit_code == 0 and failed_by_itself(record):
        return "failed (ended without a request)"
    return exit_text(record.exit_code)


def exit_text(code: int | None) -> str:
    """Return the table's text for an exit code."""
    if code == 0:
        return "ended 0"
    if code is None:
        return "ended"
    return f"failed ({signal_or_code(code)})"


def signal_or_code(code: int) -> str:
    """Return ``signal 9 (SIGKILL)`` for -9 and for 137 (the shell's code), else ``exit code N``."""
    number = -code if code < 0 else code - 128
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"exit code {code}"
