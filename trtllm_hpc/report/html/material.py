"""What a report is made of, read from the run folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trtllm_hpc.bench.records import RequestRecord, read_records
from trtllm_hpc.bench.results import LevelResult, Measurement, read_measurement
from trtllm_hpc.bench.server_metrics.sampling import ServerSample, read_samples
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.report.headline import ascending_levels, headline_level, level_labels
from trtllm_hpc.report.html.phases import Story, read_story


@dataclass(frozen=True)
class Material:
    """One measurement with everything that was recorded of it."""

    run: str
    """The run's id."""
    measurement: Measurement
    records: list[RequestRecord]
    samples: list[ServerSample]
    story: Story

    @cached_property
    def labels(self) -> list[str]:
        """What each level is called."""
        return level_labels(self.measurement)

    @cached_property
    def ascending(self) -> list[tuple[str, LevelResult]]:
        """Each level with its label, from the lowest load to the highest."""
        levels = self.measurement.levels
        return [(self.labels[place], levels[place]) for place in ascending_levels(self.measurement)]

    @cached_property
    def headline(self) -> int | None:
        """The level whose figures stand for the measurement; ``None`` without levels."""
        return headline_level(self.measurement)

    def of_pass(self, level: int, repeat: int) -> list[RequestRecord]:
        """The records of one pass, in the order in which they were due."""
        chosen = [record for record in self.records if (record.level, record.repeat) == (level, repeat)]
        return sorted(chosen, key=lambda record: record.scheduled_s)


def read_material(paths: RunPaths, name: str) -> Material:
    """Read a measurement and what belongs to it; records of a level that was never judged are left out.

    Raises:
        RunNotFound: there is no such measurement, or it is another version's.
    """
    files = paths.measurement(name)
    measurement = read_measurement(files.summary)
    records = read_records(files.requests) if files.requests.exists() else []
    known = [record for record in records if record.level < len(measurement.levels)]
    return Material(paths.run_id, measurement, known, read_samples(files.samples), read_story(paths))
