"""The verdict on a whole measurement, from those on its passes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from trtllm_hpc.bench.summary import LevelResult, SearchResult, Verdict

_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?![\d])")
"""A number that is no part of a name, such as ``p99``."""


def verdict_of(
    levels: Sequence[LevelResult],
    search: SearchResult | None,
    *,
    findings: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Verdict:
    """What is wrong with the measurement; a sentence about a pass says which.

    A search goes where the server fails, on purpose: its figures are valid if
    it has found a rate.

    Args:
        findings, warnings: about the measurement as a whole.
    """
    warned = _told(levels, lambda verdict: verdict.warnings)
    wrong = _told(levels, lambda verdict: verdict.findings)
    if search is not None:
        warned, wrong = [*wrong, *warned], _search_failed(search)
    passes = [one for level in levels for one in level.passes]
    return Verdict(
        findings=[*findings, *wrong],
        warnings=[*warnings, *warned],
        client_limited=any(one.verdict.client_limited for one in passes),
        unsteady=any(one.verdict.unsteady for one in passes),
    )


def _told(levels: Sequence[LevelResult], said: Callable[[Verdict], Sequence[str]]) -> list[str]:
    """Each sentence once, with what it is about before it; where only numbers differ it is one sentence."""
    alike: dict[str, list[tuple[tuple[int, int], str]]] = {}
    for place, level in enumerate(levels):
        for number, one in enumerate(level.passes):
            for sentence in said(one.verdict):
                alike.setdefault(_NUMBER.sub("\0", sentence), []).append(((place, number), sentence))
    told = []
    for group in alike.values():
        about = _about(levels, list(dict.fromkeys(where for where, _ in group)))
        sentence = _with_ranges([sentence for _, sentence in group])
        told.append(f"{about}: {sentence}" if about else sentence)
    return told


def _about(levels: Sequence[LevelResult], passes: Sequence[tuple[int, int]]) -> str:
    """The passes in words; nothing of the only level's if all are meant."""
    alone, places = len(levels) == 1, list(dict.fromkeys(place for place, _ in passes))
    whole = {
        place: len(levels[place].passes) == sum(place == other for other, _ in passes) for place in places
    }
    if len(places) == len(levels) and all(whole.values()):
        return "" if alone else "all levels"
    labels = []
    for place, number in passes:
        repeat = levels[place].passes[number].repeat + 1
        name = f"pass {repeat}" if alone else f"{levels[place].level.label} (pass {repeat})"
        labels.append(levels[place].level.label if whole[place] else name)
    return ", ".join(dict.fromkeys(labels))


def _with_ranges(sentences: Sequence[str]) -> str:
    """The first of sentences that differ in numbers only, with ``5 to 95`` for a number that differs."""
    numbers = iter([_range(same_place) for same_place in zip(*map(_NUMBER.findall, sentences), strict=True)])
    return _NUMBER.sub(lambda _: next(numbers), sentences[0])


def _range(numbers: Sequence[str]) -> str:
    low, high = (pick(numbers, key=lambda text: float(text.replace(",", ""))) for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def _search_failed(search: SearchResult) -> list[str]:
    if search.max_rate_per_s is not None:
        return []
    return [f"The search found no rate at which {search.slo} holds. {search.stopped or ''}".strip()]
