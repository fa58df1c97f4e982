"""From measurements to medians, ratios and a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.reference.children import Memory
from benchmarks.reference.lines import ENGINE, FEATURES, TRITON, Line
from benchmarks.reference.prepare import Facts

LEAST_RATIO = 0.9
JUDGED_CONCURRENCY = 32


@dataclass(frozen=True)
class Sample:
    """One measurement."""

    line: str
    concurrency: int
    tokens: int
    seconds: float
    sender_cpu: float
    """CPU of the process that sent the requests, in cores."""
    own_cpu: float
    """CPU of the contender, in cores; a server's client belongs to it."""
    idle_cpu: float
    """CPU of all other contenders together meanwhile, in cores."""
    strange_cpu: float
    """CPU of whatever else ran on the machine, in cores: a quiet one has next to none."""
    same_answers: float | None
    """Share of the answers that equal those of the line all are compared with."""

    @property
    def rate(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds


@dataclass
class Results:
    """The results of one run of the benchmark."""

    facts: Facts
    lines: list[Line]
    concurrencies: Sequence[int]
    samples: list[Sample] = field(default_factory=list)
    memory: dict[str, Memory] = field(default_factory=dict)
    """By line; lines of one process share it."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why a line has no or not all figures."""

    def rates(self, line: str, concurrency: int) -> list[float]:
        """Rates of all rounds, slowest first."""
        return sorted(
            sample.rate for sample in self.samples if (sample.line, sample.concurrency) == (line, concurrency)
        )

    def median(self, line: str, concurrency: int) -> float | None:
        """Median output tokens per second over the rounds."""
        rates = self.rates(line, concurrency)
        return statistics.median(rates) if rates else None

    def best(self, concurrency: int, *, library_only: bool) -> tuple[str, float] | None:
        """The fastest contender in one process without the extra features."""
        found = [
            (line.name, median)
            for line in self.lines
            if (line.is_library if library_only else line.is_bar) and not line.features
            if (median := self.median(line.name, concurrency)) is not None
        ]
        return max(found, key=lambda item: item[1]) if found else None

    def ratio(self, line: str, other: str, concurrency: int) -> float | None:
        """The ratio of two medians."""
        above, below = self.median(line, concurrency), self.median(other, concurrency)
        return above / below if above is not None and below is not None else None

    def record(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """All results as plain JSON types."""
        return {
            "settings": dict(settings),
            "facts": {**asdict(self.facts), "bound": self.facts.bound},
            "tokens_per_second": {
                line.name: {str(count): self.rates(line.name, count) for count in self.concurrencies}
                for line in self.lines
            },
            "peak_memory_bytes": {name: asdict(memory) for name, memory in self.memory.items()},
            "samples": [asdict(sample) for sample in self.samples],
            "failures": self.failures,
            "verdicts": [asdict(verdict) for verdict in self.verdicts()],
        }

    def verdicts(self) -> list[Verdict]:
        """On CPUs, Triton against the fastest contender; with all features, against transformers alone."""
        found = []
        for name, library_only in ((TRITON, False), (TRITON + FEATURES, True)):
            if name not in {line.name for line in self.lines}:
                continue
            if self.facts.device == "cuda" and not library_only:
                continue
            best = self.best(JUDGED_CONCURRENCY, library_only=library_only)
            median = self.median(name, JUDGED_CONCURRENCY)
            if best is not None and median is not None:
                found.append(Verdict(name, best[0], median / best[1]))
        return found


@dataclass(frozen=True)
class Verdict:
    """Whether a line keeps up with the best one it is compared with, at concurrency 32."""

    line: str
    best: str
    ratio: float

    @property
    def is_kept(self) -> bool:
        return self.ratio >= LEAST_RATIO

    def __str__(self) -> str:
        state = "kept" if self.is_kept else "BROKEN"
        return (
            f"{state}: {self.line} / {self.best} = {self.ratio:.2f} at concurrency {JUDGED_CONCURRENCY}, "
            f"bound {LEAST_RATIO}"
        )


def ratio_rows(results: Results) -> dict[str, list[float | None]]:
    """Ratios of medians by name, one for each concurrency."""
    names = [line.name for line in results.lines]
    rows: dict[str, list[float | None]] = {}
    for suffix in ("", FEATURES):
        triton, engine = TRITON + suffix, ENGINE + suffix
        if triton in names and engine in names:
            rows[f"{triton} / {engine}"] = [
                results.ratio(triton, engine, count) for count in results.concurrencies
            ]
        if triton in names and any(line.is_library for line in results.lines):
            rows[f"{triton} / best of the library"] = [
                _to_best(results, triton, count) for count in results.concurrencies
            ]
    return rows


def _to_best(results: Results, line: str, concurrency: int) -> float | None:
    best = results.best(concurrency, library_only=True)
    return None if best is None else results.ratio(line, best[0], concurrency)
