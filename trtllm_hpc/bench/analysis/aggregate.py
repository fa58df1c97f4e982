"""From passes to a whole measurement: intervals over repeats, token totals, errors, and the verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trtllm_hpc.bench.analysis.sentences import sentence_of, stated
from trtllm_hpc.bench.analysis.statistics import STATISTICS, t_interval, value_of
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.results import (
    Distribution,
    Figure,
    Finding,
    Interval,
    LevelResult,
    SearchResult,
    Verdict,
)
from trtllm_hpc.bench.server_metrics.sampling import ServerTokens
from trtllm_hpc.bench.workload.request import BY_SERVER

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
"""Any digits of a server's error message, those in names too."""


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
    }


def _least_tokens(record: RequestRecord) -> int | None:
    """Return the model's count, or what was seen: each response of a stream has a token, and each answer."""
    if record.output_by == BY_SERVER or record.output_tokens is None:
        return record.output_tokens
    return len(record.chunks_s) or min(1, record.output_tokens)


def _most_tokens(record: RequestRecord) -> int | None:
    return record.output_tokens if record.output_by == BY_SERVER else record.requested_tokens


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
            groups.setdefault(_NUMBER.sub("N", message), Counter())[message] += 1
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
    findings: Sequence[Finding] = (),
    warnings: Sequence[Finding] = (),
) -> Verdict:
    """Combine the verdicts of all passes with ``findings`` and ``warnings`` about the measurement as a whole.

    A finding of several passes is given once, as the worst of them, with where it was found. A search goes
    beyond what the server can do on purpose, so its findings become warnings: the measurement is valid if the
    search found a rate.
    """
    of_passes = _merged(levels, lambda verdict: verdict.findings)
    pass_warnings = _merged(levels, lambda verdict: verdict.warnings)
    if search is not None:
        pass_warnings, of_passes = [*of_passes, *pass_warnings], []
        if search.max_rate_per_s is None:
            facts = {"slo": search.slo, "stopped": search.stopped or ""}
            of_passes = [stated(Finding("no-rate", facts=facts))]
    return Verdict([*map(stated, findings), *of_passes], [*map(stated, warnings), *pass_warnings])


def _merged(levels: Sequence[LevelResult], of: Callable[[Verdict], Sequence[Finding]]) -> list[Finding]:
    """Return the worst finding of each code, with its sentence and the passes that have one."""
    groups: dict[str, list[tuple[int, int, Finding]]] = {}
    for place, level in enumerate(levels):
        for number, one in enumerate(level.passes):
            for finding in of(one.verdict):
                groups.setdefault(finding.code, []).append((place, number, finding))
    merged = []
    for group in groups.values():
        found = [finding for _, _, finding in group]
        worst = max(found, key=lambda it: abs((it.value or 0.0) - (it.limit or 0.0)))
        sentence = sentence_of(worst)
        if any(finding != worst for finding in found):
            sentence += f" This is the worst of {len(found)} passes."
        where = _where(levels, [(place, number) for place, number, _ in group])
        merged.append(replace(worst, where=where, sentence=sentence))
    return merged


def _where(levels: Sequence[LevelResult], passes: Sequence[tuple[int, int]]) -> str:
    """Name the passes, given as (level, pass); empty if they are all passes of the only level."""
    if len(passes) == sum(len(level.passes) for level in levels):
        return "" if len(levels) == 1 else "all levels"
    labels = []
    for place, level in enumerate(levels):
        repeats = [level.passes[number].repeat + 1 for other, number in passes if other == place]
        if len(repeats) == len(level.passes):
            labels.append(level.level.label)
        else:
            name = "pass {}" if len(levels) == 1 else f"{level.level.label} (pass {{}})"
            labels += map(name.format, repeats)
    return ", ".join(labels)
