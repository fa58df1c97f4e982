"""The first screen: may the figures be used, and which are they."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtllm_hpc.bench.results import Interval, LevelResult
from trtllm_hpc.report.headline import finished_rate, is_valid, keeps_up
from trtllm_hpc.report.html.material import Material
from trtllm_hpc.report.words import plus_minus, quantity, share


@dataclass(frozen=True)
class Card:
    """One figure in large type."""

    label: str
    value: str
    unit: str
    note: str = ""


@dataclass(frozen=True)
class Judgement:
    """The gate's verdict in words."""

    kind: str
    """``valid``, ``noted`` (valid, with warnings) or ``invalid``."""
    words: str
    findings: list[str]
    warnings: list[str]


def judgement(material: Material) -> Judgement:
    """The verdict; it names the levels and passes that its sentences are about."""
    verdict = material.measurement.verdict
    if not verdict.valid:
        kind, words = "invalid", "Not valid: these figures must not be used."
    elif verdict.warnings:
        kind, words = "noted", "Valid, with notes."
    else:
        kind, words = "valid", "Valid: these figures may be used."
    return Judgement(kind, words, verdict.findings, verdict.warnings)


def headline_words(material: Material) -> str:
    """Of which level the cards are, and why of that."""
    if material.headline is None:
        return "Nothing was measured."
    label = material.labels[material.headline]
    search = material.measurement.search
    if search is not None and search.max_rate_per_s is not None:
        return f"At {label}, the highest rate found that holds {search.slo}."
    if len(material.labels) == 1:
        return f"At {label}, the only level measured."
    levels = material.measurement.levels
    usable = "valid " if material.measurement.verdict.valid and any(map(is_valid, levels)) else ""
    if not keeps_up(levels[material.headline]):
        return f"At {label}, the {usable}level with the most requests finished each second."
    most = max(range(len(levels)), key=lambda place: finished_rate(levels[place]))
    top = (
        f" The most that was finished is {quantity(finished_rate(levels[most]))} requests/s, "
        f"at {material.labels[most]}, where requests pile up."
        if not keeps_up(levels[most])
        else ""
    )
    return f"At {label}, the highest {usable}load with which the server kept up.{top}"


def cards(material: Material) -> list[Card]:
    """The figures that a reader asks for first."""
    if material.headline is None:
        return []
    result = material.measurement.levels[material.headline]
    return [*_rates(result), *_latencies(result), _errors(result)]


def _rates(result: LevelResult) -> Iterator[Card]:
    rate = result.metrics.get("asked_rate_per_s")
    asked = f"asked {rate.mean:.6g}" if isinstance(rate, Interval) else ""
    for key, label, unit, note in (
        ("finished_rate_per_s", "Throughput", "requests/s", asked),
        ("output_tokens_per_s", "Output", "tokens/s", ""),
        ("goodput_per_s", "Goodput", "requests/s", "within the SLO"),
    ):
        found = result.metrics.get(key)
        if isinstance(found, Interval):
            yield Card(label, quantity(found.mean), unit, "; ".join(filter(None, (plus_minus(found), note))))


def _latencies(result: LevelResult) -> Iterator[Card]:
    for key, label, statistic in (
        ("ttft_ms", "TTFT", "p50"),
        ("ttft_ms", "TTFT", "p99"),
        ("tpot_ms", "TPOT", "p50"),
        ("latency_ms", "Latency", "p50"),
        ("latency_ms", "Latency", "p99"),
    ):
        found = result.metrics.get(key)
        if isinstance(found, dict) and statistic in found:
            interval = found[statistic]
            yield Card(f"{label} {statistic}", quantity(interval.mean), "ms", plus_minus(interval))


def _errors(result: LevelResult) -> Card:
    failed = sum(one.failed for one in result.passes)
    measured = sum(one.measured for one in result.passes)
    return Card("Failed", share(failed / measured if measured else None), "", f"{failed:,} of {measured:,}")
