"""What a report shows, read from the run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from trtllm_hpc.bench.records import RequestRecord, read_records
from trtllm_hpc.bench.results import LevelResult, MeasurementSummary, read_measurement
from trtllm_hpc.bench.server_metrics.sampling import ServerSample, read_samples
from trtllm_hpc.evaluation.scores import EvaluationSummary, read_evaluation
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import COMPANION_MEASUREMENT, STAGES, RunPaths
from trtllm_hpc.report.headline import ascending_levels, headline_level, level_labels
from trtllm_hpc.runs.accounting import StageUse, uses_from_events
from trtllm_hpc.runtime.records import Event, read_events
from trtllm_hpc.scheduler.submission_record import SubmissionRecord, read_submission

WAITS = "in the queue"
_MARKS = (
    ("stage_begin", "preflight_ok", "preflight"),
    ("preflight_ok", "server_start", "launch"),
    # Triton opens its ports only when every model is loaded.
    ("server_start", "ready", "load the model"),
)


@dataclass(frozen=True)
class Phase:
    """A part of a stage; times in seconds since the run was submitted."""

    stage: str
    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class StartTimeline:
    """The phases of a run until its server was ready."""

    phases: list[Phase]
    ready_s: float | None
    """Seconds since submission; ``None`` if it never was ready."""


def read_start_timeline(paths: RunPaths) -> StartTimeline:
    """Read the phases of the last attempt at each stage; a run without events has none."""
    attempts = {stage: _last_attempt(read_events(paths, stage)) for stage in STAGES}
    record = read_submission(paths)
    times = [event.time for events in attempts.values() for event in events]
    times += [job.submitted_at for job in record.stages.values()] if record else []
    if not times:
        return StartTimeline([], None)
    zero = min(times)
    ready = next((event.time for event in attempts["serve"] if event.name == "ready"), None)
    phases = [
        replace(phase, begin_s=phase.begin_s - zero, end_s=phase.end_s - zero)
        for stage in STAGES
        for phase in _phases(stage, attempts[stage], record)
        if ready is None or phase.begin_s < ready
    ]
    return StartTimeline(phases, None if ready is None else ready - zero)


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
        # The steps as the build reports them; each lasts until the next.
        reported = [event for event in events if event.name in ("stage_begin", "progress", "stage_end")]
        for event, following in pairwise(reported):
            name = str(event.data.get("message", "starts")) if event.name == "progress" else "starts"
            yield Phase(stage, name, event.time, following.time)
    elif stage == "serve":
        times = {event.name: event.time for event in events}
        for begin, end, name in _MARKS:
            if begin in times and end in times:
                yield Phase(stage, name, times[begin], times[end])


@dataclass(frozen=True)
class ReportData:
    """One measurement and all its records."""

    run: str
    """Id of the run."""
    measurement: MeasurementSummary
    records: list[RequestRecord]
    samples: list[ServerSample]
    start: StartTimeline
    uses: Sequence[StageUse] = ()
    """What each stage has used, by the run's own events."""
    evaluation: EvaluationSummary | None = None
    """The companion's evaluation, in the report of its measurement."""

    @cached_property
    def labels(self) -> list[str]:
        """The label of each level."""
        return level_labels(self.measurement)

    @cached_property
    def ascending(self) -> list[tuple[str, LevelResult]]:
        """Each level with its label, from the lowest load to the highest."""
        levels = self.measurement.levels
        return [(self.labels[place], levels[place]) for place in ascending_levels(self.measurement)]

    @cached_property
    def headline(self) -> int | None:
        """The level whose figures represent the measurement; ``None`` without levels."""
        return headline_level(self.measurement)


def read_report_data(paths: RunPaths, name: str) -> ReportData:
    """Read a measurement and its records. Records of a level without a summary are left out.

    Raises RunNotFound if there is no such measurement, or another version wrote it.
    """
    files = paths.measurement(name)
    measurement = read_measurement(files.summary)
    records = read_records(files.requests) if files.requests.exists() else []
    known = [record for record in records if record.level < len(measurement.levels)]
    # The companion writes the page while the server still runs.
    now = time.time() if "TRTLLM_HPC_JOB_ID" in os.environ else None
    return ReportData(
        paths.run_id,
        measurement,
        known,
        read_samples(files.samples),
        read_start_timeline(paths),
        uses_from_events(RunSnapshot(paths), now),
        read_evaluation(paths.evaluation()) if name == COMPANION_MEASUREMENT else None,
    )
