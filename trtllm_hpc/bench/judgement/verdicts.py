"""The verdict on a whole measurement, from those on its passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtllm_hpc.bench.summary import LevelResult, Pass, SearchResult, Verdict


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
    labelled = [(label, one) for level in levels for label, one in _labelled(level, alone=len(levels) == 1)]
    warned = _told([(label, sentence) for label, one in labelled for sentence in one.verdict.warnings])
    wrong = _told([(label, sentence) for label, one in labelled for sentence in one.verdict.findings])
    if search is not None:
        warned, wrong = [*wrong, *warned], _search_failed(search)
    return Verdict(
        findings=[*findings, *wrong],
        warnings=[*warnings, *warned],
        client_limited=any(one.verdict.client_limited for _, one in labelled),
        unsteady=any(one.verdict.unsteady for _, one in labelled),
    )


def _labelled(level: LevelResult, *, alone: bool) -> Iterator[tuple[str, Pass]]:
    for one in level.passes:
        parts = [] if alone else [level.level.label]
        if len(level.passes) > 1:
            parts.append(f"pass {one.repeat + 1}" if alone else f"(pass {one.repeat + 1})")
        yield " ".join(parts), one


def _told(sentences: Sequence[tuple[str, str]]) -> list[str]:
    """Each sentence once, with the passes that it is about before it."""
    passes: dict[str, list[str]] = {}
    for label, sentence in sentences:
        passes.setdefault(sentence, []).append(label)
    return [
        f"{', '.join(labels)}: {sentence}" if any(labels) else sentence for sentence, labels in passes.items()
    ]


def _search_failed(search: SearchResult) -> list[str]:
    if search.max_rate_per_s is not None:
        return []
    return [f"The search found no rate at which {search.slo} holds. {search.stopped or ''}".strip()]
