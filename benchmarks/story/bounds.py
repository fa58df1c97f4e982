"""The bounds that one GPU must keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.story.figures import (
    Figures,
    Record,
    decode_steps,
    gpus_of,
    loading_over_reading,
    pace_of,
    slowed_by_long_prompts,
)

JUDGED = "tp1"
"""The story of one GPU."""

STREAMED_OVER_WHOLE = {1: 0.9, 32: 0.8, 128: 0.6}
"""Streamed over whole answers of the core model, by requests at once."""

TEXT = (("ensemble", "tensorrt_llm", 0.8), ("tensorrt_llm_bls", "ensemble", 0.9))
"""Streams of a model with text, over another's."""


@dataclass(frozen=True)
class Verdict:
    """One bound."""

    what: str
    value: float
    limit: float
    at_least: bool = True

    @property
    def kept(self) -> bool:
        """Whether the bound is kept."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign = "at least" if self.at_least else "at most"
        state = "kept" if self.kept else "BROKEN"
        return f"{state}: {self.what}: {self.value:.2f} ({sign} {self.limit:g})"


def verdicts(figures: Figures) -> list[Verdict]:
    """Each bound whose figures were measured, on one GPU."""
    story = figures.stories.get(JUDGED)
    if story is None or not gpus_of(story):
        return []
    return [*_ratios(story), *_times(story)]


def _ratios(story: Record) -> Iterator[Verdict]:
    for count, limit in STREAMED_OVER_WHOLE.items():
        streamed = pace_of(story, "tensorrt_llm", count, streamed=True)
        whole = pace_of(story, "tensorrt_llm", count, streamed=False)
        if streamed and whole:
            yield Verdict(
                f"tensorrt_llm, streamed over whole answers, {count} at once", streamed / whole, limit
            )
    for above, below, limit in TEXT:
        for count in STREAMED_OVER_WHOLE:
            ours = pace_of(story, above, count, streamed=True)
            others = pace_of(story, below, count, streamed=True)
            if ours and others:
                yield Verdict(f"{above} over {below}, streamed, {count} at once", ours / others, limit)


def _times(story: Record) -> Iterator[Verdict]:
    steps, slowed = decode_steps(story), slowed_by_long_prompts(story)
    if steps is not None:
        yield Verdict("time to first token of a lone request, in decode steps", steps, 4.0, at_least=False)
    if slowed is not None:
        yield Verdict("inter-token p99 beside long prompts, over that alone", slowed, 3.0, at_least=False)
    if len(story["starts"]) > 1 and (loading := loading_over_reading(story["starts"][1])) is not None:
        what = "second start: loading over importing the libraries and reading the weights"
        yield Verdict(what, loading, 1.5, at_least=False)
