"""The top of the page: whether the figures are valid, and the most important ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtllm_hpc.bench.results import Interval, LevelResult
from trtllm_hpc.report.formatting import plus_minus, quantity, share
from trtllm_hpc.report.headline import finished_rate, is_valid, keeps_up
from trtllm_hpc.report.html.data import ReportData


@dataclass(frozen=True)
class Card:
    """One figure in large type."""

    label: str
    value: str
    unit: str
    note: str = ""


@dataclass(frozen=True)
class VerdictPanel:
    """The verdict on the measurement, in words; its findings and warnings stand below."""

    kind: str
    """``valid``, ``noted`` (valid, with warnings) or ``invalid``."""
    words: str


def verdict(data: ReportData) -> VerdictPanel:
    """Return whether the figures may be used."""
    verdict = data.measurement.verdict
    if not verdict.valid:
        kind, words = "invalid", "Not valid: these figures must not be used."
    elif verdict.warnings:
        kind, words = "noted", "Valid, with notes."
    else:
        kind, words = "valid", "Valid: these figures may be used."
    return VerdictPanel(kind, words)


def headline_words(data: ReportData) -> str:
    """Say which level the cards show, and why."""
    if data.headline is None:
        return "Nothing was measured."
    label = data.labels[data.headline]
    search = data.measurement.search
    if search is not None and search.max_rate_per_s is not None:
        return f"At {label}, the highest rate found that holds {search.slo}."
    if len(data.labels) == 1:
        return f"At {label}, the only level measured."
    levels = data.measurement.levels
    usable = "valid " if data.measurement.verdict.valid and any(map(is_valid, levels)) else ""
    if not keeps_up(levels[data.headline]):
        return f"At {label}, the {usable}level with the most requests finished each second."
    most = max(range(len(levels)), key=lambda place: finished_rate(levels[place]))
    top = (
        f" The highest throughput is {quantity(finished_rate(levels[most]))} requests/s, "
        f"at {data.labels[most]}, where requests queue up."
        if not keeps_up(levels[most])
        else ""
    )
    return f"At {label}, the highest {usable}load with which the server kept up.{top}"


def cards(data: ReportData) -> list[Card]:
    """The most important figures of the headline level."""
    if data.headline is None:
        return []
    result = data.measurement.levels[data.headline]
    return [*_rates(result), *_latencies(result), _errors(result)]


def _rates(result: LevelResult) -> Iterator[Card]:
    rate = result.metrics.get("asked_rate_per_s")
    requested = f"requested {quantity(rate.mean)}" if isinstance(rate, Interval) else ""
    for key, label, unit, note in (
        ("finished_rate_per_s", "Throughput", "requests/s", requested),
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
