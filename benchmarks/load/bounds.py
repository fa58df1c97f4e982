"""What must hold, and whether it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.load.figures import CLOSED, OPEN, STREAMS, Figures

Results = Mapping[tuple[str, str], Figures]
"""Medians by scenario and contender."""
OURS, ANCHOR = "ours", "perf_analyzer"


@dataclass(frozen=True)
class Verdict:
    """One bound."""

    what: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def kept(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign = "at least" if self.at_least else "at most"
        return f"{'kept  ' if self.kept else 'BROKEN'} {self.what}: {self.value:.3g} ({sign} {self.limit:g})"


def verdicts(results: Results, rate_per_s: float) -> list[Verdict]:
    """Each bound whose scenario was measured."""
    found: list[Verdict] = []
    if (CLOSED, OURS) in results:
        ours, anchor = results[CLOSED, OURS], results[CLOSED, ANCHOR]
        found += [
            Verdict("closed loop: rate over perf_analyzer's", _ratio(ours, anchor, "rate_per_s"), 0.95, True),
            Verdict(
                "closed loop: CPU time a request over perf_analyzer's",
                _ratio(ours, anchor, "cpu_us_per_request"),
                1.5,
            ),
        ]
    if (OPEN, OURS) in results:
        ours, anchor = results[OPEN, OURS], results[OPEN, ANCHOR]
        off = abs((ours.rate_per_s or 0) / rate_per_s - 1) * 100
        found += [
            Verdict("open loop: rate off by, percent", off, 0.1),
            Verdict("open loop: p99 of sent after due, ms", ours.late_p99_ms or 0, 1.0),
            Verdict("open loop: p99 latency over perf_analyzer's", _ratio(ours, anchor, "p99_ms"), 1.3),
        ]
    if (STREAMS, OURS) in results:
        ours = results[STREAMS, OURS]
        found += [
            Verdict("streams: cores of the client", ours.cores or 0, 0.5),
            Verdict("streams: p99 of inter-token time off by, ms", ours.gap_error_p99_ms or 0, 1.0),
        ]
    return found


def _ratio(ours: Figures, anchor: Figures, name: str) -> float:
    return float(getattr(ours, name)) / float(getattr(anchor, name))
