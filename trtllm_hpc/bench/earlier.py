"""What an earlier attempt of the companion has measured whole, and need not be measured again.

Its companion was killed, ran into its time limit, or lost its server between two levels.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import takewhile

from trtllm_hpc.bench.levels import levels_of
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.records import UNFINISHED, RequestRecord, read_records
from trtllm_hpc.bench.results import LevelResult, read_measurement
from trtllm_hpc.bench.server_metrics.sampling import ServerSample, read_samples
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.paths import MeasurementPaths


@dataclass(frozen=True)
class Earlier:
    """The first levels of a measurement, with their records and samples; by default none."""

    started_at: float | None = None
    """Seconds since the epoch."""
    levels: list[LevelResult] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)
    samples: list[ServerSample] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many requests of the workload they have sent."""
        return 1 + max((record.index for record in self.records), default=-1)

    @property
    def note(self) -> str | None:
        """A sentence for the reader of the figures."""
        count = len(self.levels)
        if not count:
            return None
        what = "The first level was" if count == 1 else f"The first {count} levels were"
        return f"{what} measured by an earlier attempt, which did not come to its end."

    def clock(self) -> Clock:
        """Return a clock that goes on counting from the earlier attempt's start."""
        if self.started_at is None:
            return Clock()
        return Clock(time.monotonic() - (time.time() - self.started_at), self.started_at)


def read_earlier(files: MeasurementPaths, settings: Benchmark) -> Earlier:
    """Return the levels that were measured whole with the same settings; none where nothing is missing.

    A search decides by each level what comes next, and begins again.
    """
    try:
        measured, records = read_measurement(files.summary), read_records(files.requests)
    except (RunNotFound, OSError, ValueError, TypeError):
        return Earlier()
    if settings.find_max or measured.settings != settings.model_dump(mode="json"):
        return Earlier()
    levels = list(takewhile(lambda level: _is_whole(level, settings), measured.levels))
    kept = [it for it in records if it.level < len(levels) and it.phase != UNFINISHED]
    if not kept or len(levels) >= len(levels_of(settings)):
        return Earlier()
    end_s = max(record.ended_s for record in kept)
    samples = [sample for sample in read_samples(files.samples) if sample.time_s <= end_s]
    return Earlier(measured.started_at, levels, kept, samples)


def _is_whole(level: LevelResult, settings: Benchmark) -> bool:
    return len(level.passes) == settings.repeats and all(it.verdict.valid for it in level.passes)
