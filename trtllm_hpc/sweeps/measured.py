"""What a sweep has measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from trtllm_hpc.bench.analysis.aggregate import over_repeats, overall_verdict
from trtllm_hpc.bench.analysis.compare import workload_diff
from trtllm_hpc.bench.analysis.sentences import sentence_of
from trtllm_hpc.bench.analysis.slo import Slo, parse_slo
from trtllm_hpc.bench.metrics import GOODPUT
from trtllm_hpc.bench.results import LevelResult, MeasurementSummary, read_measurement
from trtllm_hpc.config.files import read_spec
from trtllm_hpc.errors import ConfigError, RunNotFound
from trtllm_hpc.evaluation.scores import read_evaluation
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths
from trtllm_hpc.report.frames import level_figures
from trtllm_hpc.report.headline import is_valid, level_labels, load_of
from trtllm_hpc.sweeps.points import Best, Point, best_variant, frontier
from trtllm_hpc.sweeps.record import SweepPaths, read_record
from trtllm_hpc.sweeps.status import SweepStatus, VariantStatus, sweep_status


@dataclass(frozen=True)
class SweepResults:
    """All that a sweep has measured."""

    status: SweepStatus
    slo: str | None
    points: Sequence[Point]
    best: Best
    notes: Sequence[str]
    """What a reader of the figures must know."""


def read_results(
    sweep: SweepPaths,
    *,
    slo: str | None = None,
    status: SweepStatus | None = None,
) -> SweepResults:
    """Read the companion's measurement of every variant.

    Args:
        slo: limits instead of those of the job file; there is no goodput under these.
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
            found = _without_goodput(found)
        gpus = RunSnapshot(run).planned_gpus.get("serve")
        points += _points(variant, found, limits, gpus, run)
    points = [replace(point, frontier=on) for point, on in zip(points, frontier(points), strict=True)]
    return SweepResults(
        status,
        None if limits is None else str(limits),
        points,
        best_variant(points, None if limits is None else str(limits)),
        list(_notes(measured, points, different_slos=limits is None and len(own) > 1)),
    )


def _without_goodput(measurement: MeasurementSummary) -> MeasurementSummary:
    """Return a measurement without the figures that count good requests: another SLO names other ones."""

    def left(result: LevelResult) -> LevelResult:
        passes = [
            replace(one, metrics={key: it for key, it in one.metrics.items() if key != GOODPUT.key})
            for one in result.passes
        ]
        return LevelResult(result.level, passes, over_repeats([one.metrics for one in passes]))

    return replace(measurement, levels=[left(result) for result in measurement.levels])


def _points(
    of: VariantStatus,
    measured: MeasurementSummary,
    slo: Slo | None,
    gpus: int | None,
    run: RunPaths,
) -> Iterator[Point]:
    share = 1 / max(gpus, 1) if gpus is not None else None
    # What else was found is about the whole measurement.
    of_levels = overall_verdict(measured.levels, measured.search).findings
    whole = [str(it) for it in measured.verdict.findings if it not in of_levels]
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
