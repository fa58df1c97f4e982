"""The phases of a run from submit to ready, from the record and the events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trtllm_hpc.paths import STAGES, RunPaths
from trtllm_hpc.runtime.records import Event, read_events
from trtllm_hpc.scheduler.submission_record import SubmissionRecord, read_submission

WAITS = "waits for its turn"
_MARKS = (
    ("stage_begin", "preflight_ok", "preflight"),
    ("preflight_ok", "server_start", "launch"),
    # Triton opens its ports only when every model is loaded.
    ("server_start", "ready", "load the model"),
)


@dataclass(frozen=True)
class Phase:
    """One stretch of a stage, in seconds since the run was submitted."""

    stage: str
    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Story:
    """How a run came to be ready."""

    phases: list[Phase]
    ready_s: float | None
    """``None`` if it never was."""


def read_story(paths: RunPaths) -> Story:
    """The phases of the last attempt at each stage; none of a run without events."""
    attempts = {stage: _last_attempt(read_events(paths, stage)) for stage in STAGES}
    record = read_submission(paths)
    times = [event.time for events in attempts.values() for event in events]
    times += [job.submitted_at for job in record.stages.values()] if record else []
    if not times:
        return Story([], None)
    zero = min(times)
    ready = next((event.time for event in attempts["serve"] if event.name == "ready"), None)
    phases = [phase for stage in STAGES for phase in _phases(stage, attempts[stage], record)]
    shown = (
        Phase(phase.stage, phase.name, phase.begin_s - zero, phase.end_s - zero)
        for phase in phases
        if ready is None or phase.begin_s < ready
    )
    return Story(list(shown), None if ready is None else ready - zero)


def _last_attempt(events: Sequence[Event]) -> list[Event]:
    begins = [number for number, event in enumerate(events) if event.name == "stage_begin"]
    return list(events[begins[-1] :]) if begins else []


def _phases(stage: str, events: Sequence[Event], record: SubmissionRecord | None) -> Iterator[Phase]:
    if not events:
        return
    job = record.stages.get(stage) if record else None
    if job is not None and job.submitted_at <= events[0].time:
        yield Phase(stage, WAITS, job.submitted_at, events[0].time)
    if stage == "build":
        yield from _steps(stage, events)
    elif stage == "serve":
        times = {event.name: event.time for event in events}
        for begin, end, name in _MARKS:
            if begin in times and end in times:
                yield Phase(stage, name, times[begin], times[end])


def _steps(stage: str, events: Sequence[Event]) -> Iterator[Phase]:
    """What the build says that it does, each until the next."""
    said = [event for event in events if event.name in ("stage_begin", "progress", "stage_end")]
    for event, following in pairwise(said):
        name = str(event.data.get("message", "starts")) if event.name == "progress" else "starts"
        yield Phase(stage, name, event.time, following.time)
