"""From passes to a whole measurement: intervals over repeats, token totals, errors, and the verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trtllm_hpc.bench.analysis.statistics import STATISTICS, t_interval, value_of
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.results import Distribution, Figure, Interval, LevelResult, SearchResult, Verdict
from trtllm_hpc.bench.server_metrics.sampling import ServerTokens
from trtllm_hpc.bench.workload.request import EXACT_SOURCES

_ANY_NUMBER = re.compile(r"\d+(?:\.\d+)?")
"""Any digits, those in names too; groups error messages."""
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?![\d])(?: of \d+(?:,\d{3})*(?![\d.%]))?")
"""A number that is not part of a name such as ``p99``, or a count and its total such as ``3 of 20``."""


def over_repeats(passes: Sequence[Mapping[str, Figure]]) -> dict[str, Interval | dict[str, Interval]]:
    """Return the mean and interval of each figure over the passes of a level, by key.

    A distribution has one interval for each statistic, by its name. A figure that is
    missing in any pass is left out, because the mean of the others would mislead.
    """
    found: dict[str, Interval | dict[str, Interval]] = {}
    for key, first in passes[0].items() if passes else ():
        if not all(key in figures for figures in passes):
            continue
        if isinstance(first, Distribution):
            found[key] = {name: _interval(passes, key, name) for name in STATISTICS}
        else:
            found[key] = _interval(passes, key, None)
    return found


def _interval(passes: Sequence[Mapping[str, Figure]], key: str, statistic: str | None) -> Interval:
    """Return the interval of one figure, cut at 0, because no rate, time, share or count is negative."""
    found = t_interval([value_of(figures[key], statistic) for figures in passes])
    return found if found.low is None else replace(found, low=max(found.low, 0.0))


def token_totals(records: Iterable[RequestRecord], server: ServerTokens | None = None) -> dict[str, Any]:
    """Return the input and output tokens of all answered measured requests, and how they were counted.

    ``output_at_least`` and ``output_at_most`` are the limits between which the output
    tokens lie for certain. A total is ``None`` if it is unknown for any answer.

    Args:
        server: the server's own count over the whole measurement, warm-up included.
    """
    answered = [record for record in records if record.measured and record.ok]
    return {
        "input": _total([record.input_tokens for record in answered]),
        "output": _total([record.output_tokens for record in answered]),
        "output_at_least": _total([_least_tokens(record) for record in answered]),
        "output_at_most": _total([_most_tokens(record) for record in answered]),
        "output_by_server": None if server is None else server.tokens,
        "kv_hit_share_by_server": None if server is None else server.hit_share,
        "responses": sum(len(record.chunks_s) for record in answered) or None,
        "input_by": _distinct(record.input_by for record in answered),
        "output_by": _distinct(record.output_by for record in answered),
        "chunks_by": _distinct(record.chunks_by for record in answered),
    }


def _least_tokens(record: RequestRecord) -> int | None:
    """Return the model's count, or what was seen: each response of a stream has a token, and each answer."""
    if record.output_by in EXACT_SOURCES or record.output_tokens is None:
        return record.output_tokens
    return len(record.chunks_s) or min(1, record.output_tokens)


def _most_tokens(record: RequestRecord) -> int | None:
    return record.output_tokens if record.output_by in EXACT_SOURCES else record.requested_tokens


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _distinct(names: Iterable[str | None]) -> list[str]:
    return sorted({name for name in names if name is not None})


def error_counts(records: Iterable[RequestRecord]) -> dict[str, int]:
    """Return the number of failed measured requests for each error message.

    Messages that differ only in numbers are counted together, under the first of them.
    """
    groups: dict[str, Counter[str]] = {}
    for record in records:
        if record.measured and not record.ok:
            message = (record.error or "").strip() or record.status
            groups.setdefault(_ANY_NUMBER.sub("N", message), Counter())[message] += 1
    found = {}
    for messages in groups.values():
        first, others = next(iter(messages)), len(messages) - 1
        more = f" (and {others} more that differ only in numbers)" if others else ""
        found[f"{first}{more}"] = messages.total()
    return found


def overall_verdict(
    levels: Sequence[LevelResult],
    search: SearchResult | None,
    *,
    findings: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Verdict:
    """Combine the verdicts of all passes with ``findings`` and ``warnings`` about the measurement as a whole.

    Each sentence names the levels or passes it is about. A search goes beyond what the server can do on
    purpose, so its findings become warnings: the measurement is valid if the search found a rate.
    """
    pass_warnings = _merged(levels, lambda verdict: verdict.warnings)
    pass_findings = _merged(levels, lambda verdict: verdict.findings)
    if search is not None:
        pass_warnings, pass_findings = [*pass_findings, *pass_warnings], []
        if search.max_rate_per_s is None:
            sentence = f"The search found no rate at which {search.slo} holds. {search.stopped or ''}"
            pass_findings = [sentence.strip()]
    passes = [one for level in levels for one in level.passes]
    return Verdict(
        findings=[*findings, *pass_findings],
        warnings=[*warnings, *pass_warnings],
        client_limited=any(one.verdict.client_limited for one in passes),
        unsteady=any(one.verdict.unsteady for one in passes),
    )


def _merged(levels: Sequence[LevelResult], sentences_of: Callable[[Verdict], Sequence[str]]) -> list[str]:
    """Return each sentence once, after the passes it is about; sentences that differ only in numbers are
    merged into one with ranges."""
    groups: dict[str, list[tuple[tuple[int, int], str]]] = {}
    for place, level in enumerate(levels):
        for number, one in enumerate(level.passes):
            for sentence in sentences_of(one.verdict):
                groups.setdefault(_NUMBER.sub("\0", sentence), []).append(((place, number), sentence))
    merged = []
    for group in groups.values():
        where = _where(levels, list(dict.fromkeys(where for where, _ in group)))
        sentence = _with_ranges([sentence for _, sentence in group])
        merged.append(f"{where}: {sentence}" if where else re.sub("^up to", "Up to", sentence))
    return merged


def _where(levels: Sequence[LevelResult], passes: Sequence[tuple[int, int]]) -> str:
    """Name the passes, given as (level, pass); empty if they are all passes of the only level."""
    single, places = len(levels) == 1, list(dict.fromkeys(place for place, _ in passes))
    complete = {
        place: len(levels[place].passes) == sum(place == other for other, _ in passes) for place in places
    }
    if len(places) == len(levels) and all(complete.values()):
        return "" if single else "all levels"
    labels = []
    for place, number in passes:
        repeat = levels[place].passes[number].repeat + 1
        name = f"pass {repeat}" if single else f"{levels[place].level.label} (pass {repeat})"
        labels.append(levels[place].level.label if complete[place] else name)
    return ", ".join(dict.fromkeys(labels))


def _with_ranges(sentences: Sequence[str]) -> str:
    """Return the first of sentences that differ only in numbers, with a range for each number that differs.

    Of a count with its total, the largest share is given: ``up to 30 of 400``.
    """
    numbers = iter([_range(same_place) for same_place in zip(*map(_NUMBER.findall, sentences), strict=True)])
    return _NUMBER.sub(lambda _: next(numbers), sentences[0])


def _range(numbers: Sequence[str]) -> str:
    if len(set(numbers)) == 1:
        return numbers[0]
    if " of " in numbers[0]:
        return f"up to {max(numbers, key=_share)}"
    return f"{min(numbers, key=_number)} to {max(numbers, key=_number)}"


def _share(text: str) -> tuple[float, float]:
    count, total = map(_number, text.split(" of "))
    return count / total, total


def _number(text: str) -> float:
    return float(text.replace(",", ""))
