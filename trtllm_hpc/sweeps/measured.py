"""The results of a sweep: points, frontier and best variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from trtllm_hpc.bench.analysis.aggregate import overall_verdict
from trtllm_hpc.bench.analysis.compare import SIGNIFICANCE, workload_diff
from trtllm_hpc.bench.analysis.intervals import holm, welch_test
from trtllm_hpc.bench.analysis.slo import Slo, parse_slo
from trtllm_hpc.bench.analysis.validity import sentence_of
from trtllm_hpc.bench.metrics import GOODPUT
from trtllm_hpc.bench.results import MeasurementSummary, read_measurement
from trtllm_hpc.config.dump import flow
from trtllm_hpc.config.files import read_spec
from trtllm_hpc.errors import ConfigError, RunNotFound
from trtllm_hpc.evaluation.scores import read_evaluation
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths
from trtllm_hpc.report.formatting import quantity, share
from trtllm_hpc.report.headline import is_valid, level_figures, level_labels, load_of
from trtllm_hpc.sweeps.record import SweepPaths, read_record
from trtllm_hpc.sweeps.status import SweepStatus, VariantStatus, sweep_status


@dataclass(frozen=True)
class Point:
    """One level of load of one variant. Figures are means over passes; ``None`` means not measured."""

    variant: str
    values: Mapping[str, Any]
    """Values of the keys that differ between variants."""
    level: str
    """Level of load, e.g. ``32 at once`` or ``8/s``."""
    load: float
    """Requests in flight (``closed-loop``), or scheduled requests per second (``open-loop``)."""
    load_kind: str
    gpus: int | None
    """Planned GPUs of the serve stage on all nodes; ``None`` without a plan."""
    passes: int
    valid: bool
    """Whether the figures of the level and of the whole measurement are valid."""
    findings: Sequence[str]
    """Sentences why the figures are invalid."""
    holds_slo: bool | None
    """Whether every pass holds every limit; ``None`` without an SLO."""
    output_tokens_per_s_per_gpu: float | None
    """Output tokens per second and GPU; without GPUs in the plan, of the whole server."""
    total_tokens_per_s_per_gpu: float | None
    """Prompt and output tokens per second and GPU."""
    tokens_per_s_per_user: float | None
    """Interactivity: 1000 / median TPOT in ms, like InferenceX's median_intvty
    (``utils/process_result.py``)."""
    figures: Mapping[str, float]
    """All figures of the level by key of ``Measurement.figures``, e.g. ``ttft_ms.p99``."""
    each_pass: Sequence[float]
    """Output tokens per second and GPU of each pass."""
    frontier: bool = False
    """Whether the point is on the frontier, see :func:`frontier`."""

    def row(self) -> dict[str, Any]:
        """Return the point as a flat row with the differing keys and all figures."""
        nested = ("variant", "values", "figures", "each_pass")
        own = {name: value for name, value in vars(self).items() if name not in nested}
        values = {
            key: flow(value) if isinstance(value, list | dict) else value
            for key, value in self.values.items()
        }
        return {"variant": self.variant, **values, **own, "findings": " ".join(self.findings), **self.figures}


@dataclass(frozen=True)
class Ranked:
    """A variant at its best level: valid, within the SLO, with the most output tokens/s/GPU."""

    variant: str
    level: str
    output_tokens_per_s_per_gpu: float
    p_value: float | None = None
    """Adjusted p-value of the difference to the best; ``None`` for the best, and if a spread is unknown."""
    significant: bool | None = None
    """Whether the best is significantly better."""


@dataclass(frozen=True)
class Best:
    """The ranking of the variants under the SLO."""

    sentence: str
    """Sentence with the best variant, its lead, and the lead's significance."""
    ranking: Sequence[Ranked]
    """Variants with a valid level within the SLO, best first."""


@dataclass(frozen=True)
class SweepResults:
    """All results of a sweep."""

    status: SweepStatus
    slo: str | None
    points: Sequence[Point]
    best: Best
    notes: Sequence[str]
    """Notes for readers of the figures."""


def read_results(
    sweep: SweepPaths,
    *,
    slo: str | None = None,
    status: SweepStatus | None = None,
) -> SweepResults:
    """Read the companion's measurement of every variant.

    Args:
        slo: limits that override the job file's; there is no goodput for them.
        status: status of the sweep; by default from Slurm.

    Raises:
        RunNotFound: the folder is not a sweep, or its record is damaged.
        BadSlo: the limits cannot be parsed.
    """
    status = status or sweep_status(sweep, read_record(sweep))
    measured: dict[str, MeasurementSummary] = {}
    for variant in status.variants:
        with suppress(RunNotFound):
            summary = RunPaths(variant.folder).measurement(COMPANION_MEASUREMENT).summary
            measured[variant.name] = read_measurement(summary)
    own = {str(measurement.settings.get("slo") or "") for measurement in measured.values()}
    text = slo or (own.pop() if len(own) == 1 else "")
    limits = parse_slo(text) if text else None
    points: list[Point] = []
    for variant in status.variants:
        if (measurement := measured.get(variant.name)) is not None:
            # Goodput was counted with the measurement's own SLO.
            has_goodput = limits is None or slo in (None, measurement.settings.get("slo"))
            points += _points(variant, measurement, limits, has_goodput=has_goodput)
    points = [replace(point, frontier=on) for point, on in zip(points, frontier(points), strict=True)]
    return SweepResults(
        status,
        None if limits is None else str(limits),
        points,
        best_variant(points, None if limits is None else str(limits)),
        list(_notes(measured, points, different_slos=limits is None and len(own) > 1)),
    )


def _points(
    of: VariantStatus, measured: MeasurementSummary, slo: Slo | None, *, has_goodput: bool
) -> Iterator[Point]:
    run = RunPaths(of.folder)
    gpus = RunSnapshot(run).planned_gpus.get("serve")
    share = 1 / max(gpus, 1) if gpus is not None else None
    # Findings that no level has are about the whole measurement.
    of_levels = overall_verdict(measured.levels, measured.search).findings
    whole = [str(finding) for finding in measured.verdict.findings if finding not in of_levels]
    evaluation = read_evaluation(run.evaluation())
    scores = {f"score.{task.task}": task.score for task in evaluation.tasks} if evaluation else {}
    if evaluation is not None and evaluation.passed is False:
        whole += [f"Its answers fail the gate: {task}." for task in evaluation.tasks if task.passed is False]
    with suppress(OSError, ConfigError):
        # A text search first, because parsing all settings takes longer.
        if evaluation is None and "  evaluate:\n" in run.spec.read_text(encoding="utf-8"):
            asked = read_spec(run.spec).companion.evaluate
            if asked is not None and (asked.threshold, asked.not_worse_than) != (None, None):
                whole.append("Its answers were not evaluated.")
    for label, result in zip(level_labels(measured), measured.levels, strict=True):
        figures = {**level_figures(result), **scores}
        metrics = [finished.metrics for finished in result.passes]
        if not has_goodput:
            figures.pop(GOODPUT.key, None)
        output, total, tpot = map(figures.get, ("output_tokens_per_s", "total_tokens_per_s", "tpot_ms.p50"))
        rates = [values.get("output_tokens_per_s") for values in metrics]
        each = [rate for rate in rates if isinstance(rate, float)]
        own = [sentence_of(finding) for finished in result.passes for finding in finished.verdict.findings]
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
            figures=figures,
            each_pass=[rate * share for rate in each] if share else [],
        )


def _notes(
    measured: Mapping[str, MeasurementSummary], points: Sequence[Point], *, different_slos: bool
) -> Iterator[str]:
    if different_slos:
        yield "The variants were measured with different SLOs, so none is used. Name one: --slo LIMITS."
    if any(point.gpus == 0 for point in points):
        yield "A plan has no GPUs, so its figures per GPU are those of the whole server."
    first = next(iter(measured), "")
    differ = {name: lines for name in measured if (lines := workload_diff(measured[first], measured[name]))}
    for name in list(differ)[:1]:
        more = f" and {len(differ) - 1} more variants" if len(differ) > 1 else ""
        yield f"Compare with care: {name}{more} and {first} differ in workload: {'; '.join(differ[name])}."


# Which points are on the frontier, and which variant is best ------------------------------------------


def frontier(points: Sequence[Point]) -> list[bool]:
    """Return for each point whether it is on the frontier.

    A valid point within the SLO (if any) is on the frontier unless another such point is at least as good in
    both tokens/s/GPU and tokens/s/user, and better in one of them.
    """
    on_frontier, last = set[int](), (0.0, 0.0)
    known = [
        (point.tokens_per_s_per_user, point.output_tokens_per_s_per_gpu, place)
        for place, point in enumerate(points)
        if point.valid and point.holds_slo is not False
        if point.tokens_per_s_per_user and point.output_tokens_per_s_per_gpu
    ]
    for user, gpu, place in sorted(known, reverse=True):
        if gpu > last[1] or (user, gpu) == last:
            on_frontier.add(place)
            last = (user, gpu)
    return [place in on_frontier for place in range(len(points))]


def best_variant(points: Sequence[Point], slo: str | None) -> Best:
    """Rank the variants by output tokens/s/GPU at their best valid level that meets the SLO in every pass.

    This is the rule of MLPerf Inference for servers: the highest throughput within latency limits (Reddi et
    al. 2020, "MLPerf inference benchmark").

    Each pass is one observation of Welch's t-test. The best variant is chosen after looking at all, so
    p-values are adjusted (Holm) for all pairs: adjusted only for the comparisons with the best, 16 % of
    sweeps with 64 equal variants (5 passes) would have a significant difference.
    """
    if slo is None:
        return Best("Without an SLO no variant is best. Name one, for example --slo 'ttft.p99<500ms'.", [])
    tops: dict[str, tuple[float, Point]] = {}
    for point in points:
        value = point.output_tokens_per_s_per_gpu or 0.0
        if point.valid and point.holds_slo and value > tops.get(point.variant, (0.0,))[0]:
            tops[point.variant] = (value, point)
    if not tops:
        return Best(f"No variant has a valid level that holds {slo}.", [])
    in_order = [point for _, point in sorted(tops.values(), key=lambda top: top[0], reverse=True)]
    tests = {
        (a.variant, b.variant): test.p_value
        for a, b in combinations(in_order, 2)
        if (test := welch_test(a.each_pass, b.each_pass)) is not None
    }
    p_values = dict(zip(tests, holm(list(tests.values())), strict=True))
    ranking = []
    for point in in_order:
        p_value = p_values.get((in_order[0].variant, point.variant))
        significant = None if p_value is None else p_value < SIGNIFICANCE
        ranking.append(Ranked(point.variant, point.level, tops[point.variant][0], p_value, significant))
    return Best(_sentence(slo, ranking, len(tests)), ranking)


def _sentence(slo: str, ranking: Sequence[Ranked], comparisons: int) -> str:
    best, *others = ranking
    words = f"{best.variant} ({best.level}): {quantity(best.output_tokens_per_s_per_gpu)} output tokens/s/GPU"
    if not others:
        return f"Only {words} is valid and holds {slo}."
    second = others[0]
    ahead = share(best.output_tokens_per_s_per_gpu / second.output_tokens_per_s_per_gpu - 1)
    words = f"Best under {slo}: {words}, {ahead} more than the runner-up, {second.variant} ({second.level})."
    if second.p_value is None:
        return f"{words} This may be chance, because a single pass has no spread. Measure with repeats: 5."
    chance = "is significant" if second.significant else "may be chance"
    chance += " (p < 0.001" if second.p_value < 0.001 else f" (p = {second.p_value:.2g}"
    chance += f", adjusted for {comparisons} comparisons)" if comparisons > 1 else ")"
    clear = sum(other.significant is True for other in others)
    more = f" {clear} of {len(others)} other variants are significantly slower." if len(others) > 1 else ""
    return f"{words} The difference {chance}.{more}"
