"""The results of a sweep: its points, the frontier, and the best variant."""

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
    """One level of load of one variant. Figures are means over the level's passes; ``None``: not measured."""

    variant: str
    values: Mapping[str, Any]
    """The value of each key that differs between the variants."""
    level: str
    """Label of the level, e.g. ``32 at once`` or ``8/s``."""
    load: float
    """Outstanding requests (``closed-loop``), or requested rate in requests per second (``open-loop``)."""
    load_kind: str
    gpus: int | None
    """Planned GPUs of the serve stage on all its nodes; ``None`` if the plan is missing."""
    passes: int
    """Number of passes over the level."""
    valid: bool
    """Whether the level's figures and the whole measurement may be used."""
    findings: Sequence[str]
    """Reasons why the figures must not be used."""
    holds_slo: bool | None
    """Whether every pass holds every limit; ``None`` without an SLO."""
    output_tokens_per_s_per_gpu: float | None
    """Output tokens per second and GPU; of the whole server if the plan requests no GPU."""
    total_tokens_per_s_per_gpu: float | None
    """Prompt and output tokens per second and GPU; of the whole server if the plan requests no GPU."""
    tokens_per_s_per_user: float | None
    """Interactivity in tokens per second: 1000 / median TPOT in ms.

    InferenceX uses the same formula (``median_intvty`` in ``utils/process_result.py``)."""
    figures: Mapping[str, float]
    """All figures of the level by key, as in ``Measurement.figures``, e.g. ``ttft_ms.p99``."""
    each_pass: Sequence[float]
    """Output tokens per second and GPU of each pass."""
    frontier: bool = False
    """Whether no other valid point within the SLO is better in tokens/s/GPU or tokens/s/user and as good in
    the other."""

    def row(self) -> dict[str, Any]:
        """Return the point as a flat row, with a column for each varied key and each figure."""
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
    """Adjusted p-value of the difference from the best variant; ``None`` for the best variant itself, and if
    a spread is unknown."""
    significant: bool | None = None
    """Whether the best variant is better than this variant by more than chance."""


@dataclass(frozen=True)
class Best:
    """The ranking of the variants under the SLO."""

    sentence: str
    """Names the best variant, its lead, and whether the lead may be chance."""
    ranking: Sequence[Ranked]
    """The variants that have a valid level within the SLO, the best first."""


@dataclass(frozen=True)
class SweepResults:
    """The results of a sweep."""

    status: SweepStatus
    slo: str | None
    """Limits for the ranking, e.g. ``ttft.p99<500ms``; ``None`` without an SLO."""
    points: Sequence[Point]
    best: Best
    notes: Sequence[str]
    """Sentences that a reader of the figures must know."""


def read_results(
    sweep: SweepPaths,
    *,
    slo: str | None = None,
    status: SweepStatus | None = None,
) -> SweepResults:
    """Read the companion's measurement of every variant.

    Args:
        sweep: the sweep's folder.
        slo: limits that replace the job file's limits. Goodput is known only for the measured limits, so it
            is left out if these limits differ.
        status: of the sweep; by default the status is queried from Slurm.

    Raises:
        RunNotFound: the folder is not the folder of a sweep, or its record is damaged.
        BadSlo: the limits cannot be parsed.
    """
    status = status or sweep_status(sweep, read_record(sweep))
    measured: dict[str, MeasurementSummary] = {}
    for variant in status.variants:
        with suppress(RunNotFound):
            summary = RunPaths(variant.folder).measurement(COMPANION_MEASUREMENT).summary
            measured[variant.name] = read_measurement(summary)
    own = {str(summary.settings.get("slo") or "") for summary in measured.values()}
    text = slo or (own.pop() if len(own) == 1 else "")
    limits = parse_slo(text) if text else None
    points: list[Point] = []
    for variant in status.variants:
        if (measurement := measured.get(variant.name)) is not None:
            # The goodput was counted under the measured SLO, and another SLO accepts other requests.
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
    variant: VariantStatus, measured: MeasurementSummary, slo: Slo | None, *, has_goodput: bool
) -> Iterator[Point]:
    run = RunPaths(variant.folder)
    gpus = RunSnapshot(run).stages.get("serve")
    share = 1 / max(gpus, 1) if gpus is not None else None
    # Findings beyond those of the levels concern the whole measurement, and so every level.
    level_findings = overall_verdict(measured.levels, measured.search).findings
    whole = [str(finding) for finding in measured.verdict.findings if finding not in level_findings]
    evaluation = read_evaluation(run.evaluation())
    scores = {f"score.{task.task}": task.score for task in evaluation.tasks} if evaluation else {}
    if evaluation is not None and evaluation.passed is False:
        whole += [f"The answers fail the gate: {task}." for task in evaluation.tasks if task.passed is False]
    with suppress(OSError, ConfigError):
        # Parsing all settings takes longer than looking for the section.
        if evaluation is None and "  evaluate:\n" in run.spec.read_text(encoding="utf-8"):
            gate = read_spec(run.spec).companion.evaluate
            if gate is not None and (gate.threshold, gate.not_worse_than) != (None, None):
                whole.append("The answers were not evaluated.")
    for label, level in zip(level_labels(measured), measured.levels, strict=True):
        figures, metrics = {**level_figures(level), **scores}, [result.metrics for result in level.passes]
        if not has_goodput:
            figures.pop(GOODPUT.key, None)
        output, total, tpot = map(figures.get, ("output_tokens_per_s", "total_tokens_per_s", "tpot_ms.p50"))
        rates = [rate for each in metrics if isinstance(rate := each.get("output_tokens_per_s"), float)]
        own = [sentence_of(finding) for result in level.passes for finding in result.verdict.findings]
        yield Point(
            variant=variant.name,
            values=variant.values,
            level=label,
            load=load_of(level),
            load_kind=level.level.kind,
            gpus=gpus,
            passes=len(metrics),
            valid=is_valid(level) and not whole,
            findings=list(dict.fromkeys([*whole, *own])),
            holds_slo=None if slo is None else not slo.violations(*metrics),
            output_tokens_per_s_per_gpu=output * share if output is not None and share else None,
            total_tokens_per_s_per_gpu=total * share if total is not None and share else None,
            tokens_per_s_per_user=1000 / tpot if tpot else None,
            figures=figures,
            each_pass=[rate * share for rate in rates] if share else [],
        )


def _notes(
    measured: Mapping[str, MeasurementSummary], points: Sequence[Point], *, different_slos: bool
) -> Iterator[str]:
    if different_slos:
        yield "The variants were measured with different SLOs, so no SLO is used. Set one with --slo LIMITS."
    if any(point.gpus == 0 for point in points):
        yield "A plan requests no GPU: its figures per GPU are the figures of the whole server."
    first = next(iter(measured), "")
    differ = {name: lines for name in measured if (lines := workload_diff(measured[first], measured[name]))}
    for name in list(differ)[:1]:
        more = f" and {len(differ) - 1} more variants" if len(differ) > 1 else ""
        yield f"Compare with care: {name}{more} and {first} differ in workload: {'; '.join(differ[name])}."


# Which points are on the frontier, and which variant is best ------------------------------------------


def frontier(points: Sequence[Point]) -> list[bool]:
    """Return for each point whether it is on the frontier.

    Only valid points that hold the SLO, if there is an SLO, can be on the frontier. Such a point is on the
    frontier if no other is better in tokens/s/GPU or tokens/s/user and at least equal in the other figure.
    """
    # Points are visited from the most tokens/s/user down. A point is on the frontier if it has more
    # tokens/s/GPU than every point before it.
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
    """Rank the variants by output tokens/s/GPU at their best valid level that holds the SLO in every pass.

    MLPerf Inference uses the same rule for servers: the highest throughput within latency limits (Reddi et
    al. 2020, "MLPerf inference benchmark").

    Each pass is one observation, and Welch's t-test compares the variants. The best variant is known only
    after all variants are measured, so Holm's method adjusts the p-values for all pairs. Adjusted only for
    the comparisons with the best variant, 16 % of sweeps of 64 equal variants (5 passes) would report a
    significant difference.
    """
    if slo is None:
        return Best("Ranking needs an SLO. Set one, for example --slo 'ttft.p99<500ms'.", [])
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
        repeats = "--set companion.benchmark.repeats=5"
        return f"{words} This may be chance: a single pass has no spread. Measure several passes: {repeats}."
    chance = "is significant" if second.significant else "may be chance"
    chance += " (p < 0.001" if second.p_value < 0.001 else f" (p = {second.p_value:.2g}"
    chance += f", adjusted for {comparisons} comparisons)" if comparisons > 1 else ")"
    clear = sum(other.significant is True for other in others)
    more = f" {clear} of {len(others)} other variants are significantly slower." if len(others) > 1 else ""
    return f"{words} The difference {chance}.{more}"
