"""What the table of a measurement says in lines: above it what was measured, below it what to know."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_hpc.bench.analysis.slo import BadSlo, Slo, parse_slo
from trtllm_hpc.bench.results import MeasurementSummary, Pass, Tried
from trtllm_hpc.bench.workload.request import BY_RESPONSES, EXACT_SOURCES
from trtllm_hpc.report.formatting import cut, search_sentence
from trtllm_hpc.report.headline import is_valid, level_labels, load_of


def title(measurement: MeasurementSummary) -> str:
    """Which measurement it is, and below that of what."""
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(measurement.started_at))
    host = measurement.provenance.get("server", {}).get("host")
    streaming = "streaming" if measurement.streaming else "not streaming"
    where = f" on {host}" if host else ""
    return (
        f"measurement {measurement.name}, started {started}\n"
        f"{measurement.model}{where}: {measurement.protocol}, {streaming}; latencies in ms"
    )


def sentences(measurement: MeasurementSummary) -> Iterator[str]:
    """The search, the limits, tokens, errors, and the verdict last."""
    if measurement.search is not None:
        yield f"search: {search_sentence(measurement.search)}"
    yield from _slo_sentences(measurement)
    yield from _token_sentences(measurement.tokens)
    for words, count in sorted(measurement.errors.items(), key=lambda item: -item[1]):
        yield f"failed: {count:,} time{'s' if count != 1 else ''} {cut(words)}"
    if not all(map(is_valid, measurement.levels)):
        yield "!: a level whose figures are not valid"
    for sentence in measurement.verdict.warnings:
        yield f"note: {sentence}"
    for sentence in measurement.verdict.findings:
        yield f"not valid: {sentence}"
    if measurement.verdict.valid:
        yield "valid: the figures may be used"


def _token_sentences(tokens: Mapping[str, Any]) -> Iterator[str]:
    """The totals with their sources, and for a count of texts the limits that are certain."""
    for kind in ("input", "output"):
        if tokens.get(kind) is None:
            continue
        counted_by = ", ".join(tokens.get(f"{kind}_by") or ["no source"])
        sentence = f"{kind} tokens: {tokens[kind]:,}, counted by {counted_by}"
        if kind == "output":
            sentence += "".join(f"; {words}" for words in _certainty(tokens))
        yield sentence


def _certainty(tokens: Mapping[str, Any]) -> Iterator[str]:
    output, responses = tokens["output"], tokens.get("responses")
    if responses is not None and responses < output:
        yield f"they came in {responses:,} responses"
    least, most = tokens.get("output_at_least"), tokens.get("output_at_most")
    by_text = not {*EXACT_SOURCES, BY_RESPONSES}.issuperset(tokens.get("output_by") or [])
    if by_text and least is not None and most is not None:
        yield f"at least {least:,} were sent and at most {most:,} requested"
        if tokens.get("output_by_server") is not None:
            yield f"the server's metrics have {tokens['output_by_server']:,}, warm-up included"


MAX_FAILED_SHARE = 0.01
"""With a larger share of failed requests a level keeps no SLO, whatever the answered ones took."""


def _slo_sentences(measurement: MeasurementSummary) -> Iterator[str]:
    search = measurement.search
    slo = measurement.settings.get("slo") if search is None else search.slo
    if not slo:
        return
    labels = level_labels(measurement)
    tried = _judged(measurement, slo) if search is None else search.tried
    levels = [
        (labels[one.level] if one.level < len(labels) else f"{one.rate_per_s:g}/s", one)
        for one in sorted(tried, key=lambda one: one.rate_per_s)
    ]
    holding = [label for label, one in levels if one.holds]
    if holding:
        yield f"slo {slo} holds at {', '.join(holding)}{_failed_meanwhile(measurement)}"
    for label, one in levels:
        if not one.holds:
            passes = f", in {one.passes - one.passes_held} of {one.passes} passes" if one.passes > 1 else ""
            broken = " ".join(reasons_not_held(measurement, one))
            yield f"slo does not hold at {label}{passes}: {broken}"


def _judged(measurement: MeasurementSummary, slo: str) -> Iterator[Tried]:
    """Judge each level by its passes, as a search does: it holds if every one of them keeps the limits."""
    limits = _parsed(slo)
    if limits is None:
        return
    for place, result in enumerate(measurement.levels):
        passes = result.passes
        held = sum(not limits.violations(one.metrics) and not fails_too_often(one) for one in passes)
        failing = sum(one.failed for one in passes if fails_too_often(one))
        broken = limits.violations(*(one.metrics for one in passes))
        if failing:
            measured = sum(one.measured for one in passes)
            broken.insert(0, f"{failing} of {measured} requests failed, which keep no limit.")
        yield Tried(load_of(result), held == len(passes), held, len(passes), broken, place)


def fails_too_often(one: Pass) -> bool:
    """Return whether so many requests of a pass failed that no limit on its p99 can hold.

    A failed request has no latency; whoever waited for it has waited longer than any limit allows.
    """
    return one.failed > MAX_FAILED_SHARE * one.measured


def _failed_meanwhile(measurement: MeasurementSummary) -> str:
    failed = sum(one.failed for level in measurement.levels for one in level.passes)
    return f" (for the requests that were answered; {failed} failed)" if failed else ""


def reasons_not_held(measurement: MeasurementSummary, tried: Tried) -> list[str]:
    """Return why the limits do not hold at a rate, with the figures that tables show.

    A search judged each pass by itself; tables show the means over passes.
    """
    limits = None if measurement.search is None else _parsed(measurement.search.slo)
    if tried.holds or limits is None or tried.level >= len(measurement.levels):
        return tried.broken
    violations = limits.violations(*(one.metrics for one in measurement.levels[tried.level].passes))
    others = [sentence for sentence in tried.broken if not limits.names(sentence)]
    return [*violations, *others] or tried.broken


def _parsed(slo: str) -> Slo | None:
    """Return the limits; ``None`` if another version wrote them; the figures are still readable."""
    try:
        return parse_slo(slo)
    except BadSlo:
        return None
