"""Summaries over all passes of a measurement: intervals, figures by turn, tokens, errors and the verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trtllm_hpc.bench.analysis.intervals import STATISTICS, t_interval, value_of
from trtllm_hpc.bench.analysis.validity import sentence_of, stated
from trtllm_hpc.bench.metrics import CACHED_SHARE, INPUT_TOKENS, LATENCY, TTFA, TTFT, figures
from trtllm_hpc.bench.records import RequestRecord, Sample
from trtllm_hpc.bench.results import (
    Caveat,
    ClosedLoop,
    Distribution,
    Figure,
    Interval,
    LevelResult,
    SearchResult,
    TurnFigures,
    Verdict,
    Window,
)

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
"""Numbers in error messages, including those in names."""
_OF_TURN = (INPUT_TOKENS, CACHED_SHARE, TTFT, TTFA, LATENCY)
_SINGLE_TURNS = 8
"""Number of turns with separate figures; later turns share one row."""


def over_repeats(passes: Sequence[Mapping[str, Figure]]) -> dict[str, Interval | dict[str, Interval]]:
    """Return the mean and interval of each figure over the passes of a level, by key.

    A distribution has an interval for each statistic, by name. A figure that a pass lacks is left out,
    because the mean of the other passes would mislead.
    """

    def interval(key: str, statistic: str | None = None) -> Interval:
        mean = t_interval([value_of(metrics[key], statistic) for metrics in passes])
        # Rates, times, shares and counts cannot be negative.
        return mean if mean.low is None else replace(mean, low=max(mean.low, 0.0))

    return {
        key: {name: interval(key, name) for name in STATISTICS}
        if isinstance(first, Distribution)
        else interval(key)
        for key, first in (passes[0].items() if passes else ())
        if all(key in metrics for metrics in passes)
    }


def by_turn(records: Iterable[RequestRecord]) -> list[TurnFigures]:
    """Return the figures of measured requests, grouped by their turn in the conversation."""
    groups: dict[int, list[RequestRecord]] = {}
    for record in records:
        if record.measured and record.turn is not None:
            groups.setdefault(min(record.turn, _SINGLE_TURNS + 1), []).append(record)
    rows = []
    for turn, group in sorted(groups.items()):
        sample = Sample(group, Window(0.0, 0.0), ClosedLoop(1))
        name = str(turn) if turn <= _SINGLE_TURNS else f"{turn} and later"
        failed = len(group) - len(sample.answered)
        rows.append(TurnFigures(name, len(group), failed, figures(sample, _OF_TURN)))
    return rows


def token_totals(records: Iterable[RequestRecord]) -> dict[str, Any]:
    """Return the total tokens of all answered measured requests, and who counted them.

    A total is ``None`` if the tokens of any answer are unknown.
    """
    answered = [record for record in records if record.measured and record.ok]
    counts = {
        kind: [getattr(record, f"{kind}_tokens") for record in answered] for kind in ("input", "output")
    }
    totals: dict[str, Any] = {
        kind: sum(tokens) if tokens and None not in tokens else None for kind, tokens in counts.items()
    }
    totals["responses"] = sum(len(record.chunks_s) for record in answered) or None
    for kind in counts:
        totals[f"{kind}_by"] = sorted({getattr(record, f"{kind}_by") for record in answered} - {None})
    return totals


def error_counts(records: Iterable[RequestRecord]) -> dict[str, int]:
    """Return the number of failed measured requests for each error message.

    Messages that differ only in numbers are counted together, under the first one.
    """
    first: dict[str, str] = {}
    counts = Counter[str]()
    for record in records:
        if record.measured and not record.ok:
            message = (record.error or "").strip() or record.status
            counts[first.setdefault(_NUMBER.sub("N", message), message)] += 1
    return dict(counts)


def overall_verdict(
    levels: Sequence[LevelResult],
    search: SearchResult | None,
    *,
    findings: Sequence[Caveat] = (),
    warnings: Sequence[Caveat] = (),
) -> Verdict:
    """Combine the verdicts of all passes with ``findings`` and ``warnings`` about the whole measurement.

    A finding of several passes appears once, with its worst value and its levels. A search overloads the
    server on purpose, so its findings become warnings: the measurement is valid if the search found a rate.
    """
    of_passes = _merged(levels, lambda verdict: verdict.findings)
    pass_warnings = _merged(levels, lambda verdict: verdict.warnings)
    if search is not None:
        pass_warnings, of_passes = [*of_passes, *pass_warnings], []
        if search.max_rate_per_s is None:
            facts = {"slo": search.slo, "stopped": search.stopped or ""}
            of_passes = [stated(Caveat("no-rate", facts=facts))]
    return Verdict([*map(stated, findings), *of_passes], [*map(stated, warnings), *pass_warnings])


def _merged(levels: Sequence[LevelResult], of: Callable[[Verdict], Sequence[Caveat]]) -> list[Caveat]:
    """Return the worst finding of each code, with its sentence and its levels."""
    groups: dict[str, list[tuple[str, Caveat]]] = {}
    for level in levels:
        for result in level.passes:
            for finding in of(result.verdict):
                groups.setdefault(finding.code, []).append((level.level.label, finding))

    def excess(finding: Caveat) -> float:
        return abs((finding.value or 0.0) - (finding.limit or 0.0))

    merged = []
    for group in groups.values():
        worst = max((finding for _, finding in group), key=excess)
        sentence = sentence_of(worst)
        if any(finding != worst for _, finding in group):
            sentence += f" This is the worst of {len(group)} passes."
        labels = list(dict.fromkeys(label for label, _ in group))
        where = "" if len(labels) == len(levels) else ", ".join(labels)
        merged.append(replace(worst, where=where, sentence=sentence))
    return merged
