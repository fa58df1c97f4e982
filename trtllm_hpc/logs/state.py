"""How ranks and stages are, in words, from what they wrote themselves."""

from __future__ import annotations

import signal

from trtllm_hpc.paths import STAGES, RunPaths
from trtllm_hpc.runtime.records import Event, RankRecord, StopRequest, read_events

RUNNING = "running"
NO_RECORD = "no record"
NEVER_STARTED = "never started"
SILENT = "ended without a word"
CANCELLED = "cancelled"

_END_WORDS = {"stage_cancelled": CANCELLED, "submission_interrupted": "refused (half submitted)"}
"""Events other than ``stage_end`` after which a stage is over."""


def stage_end(paths: RunPaths, stage: str) -> Event | None:
    """The event that ended a stage, unless a later job has begun the stage again."""
    marks = [
        event
        for event in read_events(paths, stage)
        if event.name in ("stage_begin", "stage_end") or event.name in _END_WORDS
    ]
    return marks[-1] if marks and marks[-1].name != "stage_begin" else None


def stage_over(paths: RunPaths, stage: str) -> bool:
    """Whether a stage has ended, or can no longer start since an earlier one failed."""
    if stage_end(paths, stage) is not None:
        return True
    earlier = [stage_end(paths, name) for name in STAGES[: STAGES.index(stage)]]
    failed = any(end is not None and end.data.get("exit_code") != 0 for end in earlier)
    return failed and not read_events(paths, stage)


def stage_state(paths: RunPaths, stage: str) -> str:
    """How a stage's batch script is."""
    events = read_events(paths, stage)
    end = stage_end(paths, stage)
    if end is None:
        if events:
            return RUNNING
        return NEVER_STARTED if stage_over(paths, stage) else NO_RECORD
    begun = [event.time for event in events if event.name == "stage_begin"]
    if end.name == "stage_cancelled" and not begun:
        return NEVER_STARTED
    if _was_cancelled(paths, events, end, max(begun, default=0.0)):
        return CANCELLED
    return _END_WORDS.get(end.name) or exit_words(end.data.get("exit_code"))


def _was_cancelled(paths: RunPaths, events: list[Event], end: Event, begun_at: float) -> bool:
    """Whether ``cancel`` ended a stage: its script may still have written its own end after that."""
    if any(event.name == "stage_cancelled" and event.time >= begun_at for event in events):
        return True
    request = StopRequest.read(paths.stop_request)
    asked = request is not None and request.by == "cancel" and begun_at <= request.requested_at <= end.time
    return asked and end.data.get("exit_code") != 0


def rank_state(record: RankRecord | None, stage_over: bool) -> str:
    """How a rank is; ``stage_over``: the batch script around it has ended."""
    if record is None:
        return NO_RECORD
    if record.ended_at is None:
        return SILENT if stage_over else RUNNING
    if record.stopped_by is not None:
        return f"stopped by {record.stopped_by}"
    if record.exit_code == 0 and failed_by_itself(record):
        return "failed (ended unasked)"
    return exit_words(record.exit_code)


def failed_by_itself(record: RankRecord) -> bool:
    """Whether a rank ended badly, and not because somebody had asked it to end.

    A server that ends unasked has failed whatever its exit code:
    TensorRT-LLM's workers leave with 0 even when the leader is lost.
    """
    if record.ended_at is None or record.stopped_by is not None:
        return False
    return record.exit_code != 0 or record.step == "serve"


def exit_words(code: int | None) -> str:
    """An exit code as the table shows it."""
    if code == 0:
        return "ended 0"
    if code is None:
        return "ended"
    return f"failed ({signal_or_code(code)})"


def signal_or_code(code: int) -> str:
    """``signal 9 (SIGKILL)`` for -9 and, as the shell writes it, 137; else ``exit code N``."""
    number = -code if code < 0 else code - 128
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"exit code {code}"
