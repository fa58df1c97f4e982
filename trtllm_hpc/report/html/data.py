"""What a report shows, read from the run folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trtllm_hpc.bench.records import RequestRecord, read_records
from trtllm_hpc.bench.results import LevelResult, MeasurementSummary, read_measurement
from trtllm_hpc.bench.server_metrics import ServerSample, read_samples
from trtllm_hpc.evaluation.scores import EvaluationSummary, read_evaluation
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths
from trtllm_hpc.report.headline import ascending_levels, headline_level, level_labels


@dataclass(frozen=True)
class ReportData:
    """One measurement and all its records."""

    run: str
    """Id of the run."""
    measurement: MeasurementSummary
    records: list[RequestRecord]
    samples: list[ServerSample]
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
    return ReportData(
        paths.run_id,
        measurement,
        known,
        read_samples(files.samples),
        read_evaluation(paths.evaluation()) if name == COMPANION_MEASUREMENT else None,
    )
