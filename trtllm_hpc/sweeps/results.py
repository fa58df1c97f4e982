"""What a sweep has measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_hpc.bench.analysis.aggregate import over_repeats, overall_verdict
from trtllm_hpc.bench.analysis.diff import workload_diff
from trtllm_hpc.bench.analysis.sentences import sentence_of
from trtllm_hpc.bench.analysis.slo import Slo, parse_slo
from trtllm_hpc.bench.metrics import ENERGY_PER_GOOD_REQUEST, GOODPUT, GOODPUT_SHARE, MEAN_POWER, figures
from trtllm_hpc.bench.records import Sample, read_records
from trtllm_hpc.bench.results import Energy, LevelResult, MeasurementSummary, Pass, read_measurement
from trtllm_hpc.config.files import read_spec
from trtllm_hpc.errors import ConfigError, RunNotFound
from trtllm_hpc.evaluation.scores import read_evaluation
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths
from trtllm_hpc.report.frames import imported_pandas, level_figures
from trtllm_hpc.report.headline import is_valid, level_labels, load_of
from trtllm_hpc.sweeps.points import Best, Point, best_variant, frontier
from trtllm_hpc.sweeps.record import SweepPaths, read_record
from trtllm_hpc.sweeps.status import SweepStatus, VariantStatus, sweep_status

if TYPE_CHECKING:
    from pandas import DataFrame

_BY_SLO = (GOODPUT, GOODPUT_SHARE, ENERGY_PER_GOOD_REQUEST)


@dataclass(frozen=True)
class SweepResults:
    """All that a sweep has measured."""

    status: SweepStatus
    slo: str | None
    gpu_price: float | None
    """Price of one GPU for one hour."""
    points: Sequence[Point]
    best: Best
    notes: Sequence[str]
    """What a reader of the figures must know."""

    def frame(self) -> DataFrame:
        """Return a table with a row for each point; raises TrtllmHpcError without pandas."""
        table: DataFrame = imported_pandas().DataFrame([point.row() for point in self.points])
        return table


def read_results(
    sweep: SweepPaths,
    *,
    slo: str | None = None,
    gpu_price: float | None = None,
    status: SweepStatus | None = None,
) -> SweepResults:
    """Read the companion's measurement of every variant.

    Args:
        slo: limits instead of those of the job file; goodput is computed anew from the records.
        gpu_price: price of one GPU for one hour.
        status: by default Slurm is asked for it.

    Raises:
        RunNotFound: the folder is not the folder of a sweep, or its record is damaged.
        BadSlo: the limits cannot be parsed.
    """
    status = status or sweep_status(sweep, read_record(sweep))
    runs = {it.name: RunPaths(it.folder) for it in status.variants}
    measured: dict[str, MeasurementSummary] = {}
    for name, run in runs.items():
        with suppress(RunNotFound):
            measured[name] = read_measurement(run.measurement(COMPANION_MEASUREMENT).summary)
    own = {str(it.settings.get("slo") or "") for it in measured.values()}
    text = slo or (own.pop() if len(own) == 1 else "")
    limits = parse_slo(text) if text else None
    points: list[Point] = []
    for variant in (it for it in status.variants if it.name in measured):
        found, run = measured[variant.name], runs[variant.name]
        if limits is not None and slo not in (None, found.settings.get("slo")):
            found = _with_goodput(found, limits, run.measurement(COMPANION_MEASUREMENT).requests)
        gpus = RunSnapshot(run).planned_gpus.get("serve")
        points += _points(variant, found, limits, gpu_price, gpus, run)
    points = [replace(point, frontier=on) for point, on in zip(points, frontier(points), strict=True)]
    return SweepResults(
        status,
        None if limits is None else str(limits),
        gpu_price,
        points,
        best_variant(points, None if limits is None else str(limits)),
        list(_notes(measured, points, different_slos=limits is None and len(own) > 1)),
    )


def _with_goodput(measurement: MeasurementSummary, slo: Slo, file: Path) -> MeasurementSummary:
    """Return the measurement with its goodput under the SLO; without the file of its records it has none."""
    records = read_records(file) if file.is_file() else []

    def judged(place: int, result: LevelResult, one: Pass) -> Pass:
        of_pass = [it for it in records if (it.level, it.repeat) == (place, one.repeat)]
        watts = one.metrics.get(MEAN_POWER.key)
        energy = Energy(watts * one.window.length_s) if isinstance(watts, float) else None
        sample = Sample(of_pass, one.window, result.level, slo, energy)
        good = figures(sample, _BY_SLO) if of_pass else {}
        others = {key: it for key, it in one.metrics.items() if key not in [it.key for it in _BY_SLO]}
        return replace(one, metrics=others | good)

    levels = []
    for place, result in enumerate(measurement.levels):
        passes = [judged(place, result, one) for one in result.passes]
        levels.append(LevelResult(result.level, passes, over_repeats([one.metrics for one in passes])))
    return replace(measurement, levels=levels)


def _points(
    of: VariantStatus,
    measured: MeasurementSummary,
    slo: Slo | None,
    price: float | None,
    gpus: int | None,
    run: RunPaths,
) -> Iterator[Point]:
    share, hourly = 1 / max(gpus, 1) if gpus is not None else None, (price or 0.0) * (gpus or 0)
    # What else was found is about the whole measurement.
    of_levels = overall_verdict(measured.levels, measured.search).findings
    whole = [str(it) for it in measured.verdict.findings if it not in of_levels]
    whole += ["A profiler ran beside it."] if measured.profile is not None else []
    evaluation = read_evaluation(run.evaluation())
    scores = {f"score.{it.task}": it.score for it in evaluation.tasks} if evaluation else {}
    if evaluation is not None and evaluation.passed is False:
        whole += [f"Its answers fail the gate: {it}." for it in evaluation.tasks if it.passed is False]
    whole += ["Its answers were not evaluated."] if evaluation is None and _has_gate(run) else []
    for label, result in zip(level_labels(measured), measured.levels, strict=True):
        found, metrics = {**level_figures(result), **scores}, [one.metrics for one in result.passes]
        output, total, tpot = map(found.get, ("output_tokens_per_s", "total_tokens_per_s", "tpot_ms.p50"))
        each = [rate for it in metrics if isinstance(rate := it.get("output_tokens_per_s"), float)]
        own = [sentence_of(it) for one in result.passes for it in one.verdict.findings]
        yield Point(
            variant=of.name,
            values=of.values,
            level=label,
            load=load_of(result),
            load_kind=result.level.kind,
            gpus=gpus,
            passes=len(metrics),
            valid=is_valid(result) and not whole,
            findings=list(dict.fromkeys([*whole, *own])),
            holds_slo=None if slo is None else not slo.violations(*metrics),
            output_tokens_per_s_per_gpu=output * share if output is not None and share else None,
            total_tokens_per_s_per_gpu=total * share if total is not None and share else None,
            tokens_per_s_per_user=1000 / tpot if tpot else None,
            cost_per_million_output_tokens=hourly / output / 0.0036 if hourly and output else None,
            figures=found,
            each_pass=[rate * share for rate in each] if share else [],
        )


def _has_gate(run: RunPaths) -> bool:
    with suppress(OSError, ConfigError):
        if "  evaluate:\n" in run.spec.read_text(encoding="utf-8"):  # reading all settings takes longer
            asked = read_spec(run.spec).companion.evaluate
            return asked is not None and (asked.threshold, asked.not_worse_than) != (None, None)
    return False


def _notes(
    measured: Mapping[str, MeasurementSummary], points: Sequence[Point], *, different_slos: bool
) -> Iterator[str]:
    if different_slos:
        yield "The variants were measured with different SLOs, so none is used. Name one: --slo LIMITS."
    if any(point.gpus == 0 for point in points):
        yield "A plan asks for no GPU: its figures for each GPU are those of the whole server."
    first = next(iter(measured), "")
    differ = {name: lines for name in measured if (lines := workload_diff(measured[first], measured[name]))}
    for name in list(differ)[:1]:
        more = f" and {len(differ) - 1} more variants" if len(differ) > 1 else ""
        yield f"Compare with care: {name}{more} and {first} differ in workload: {'; '.join(differ[name])}."
