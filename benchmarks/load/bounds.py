"""The bounds that the load generator must keep, and whether it keeps them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.load.figures import CLOSED, OPEN, STREAMS, Figures

Rounds = Mapping[tuple[str, str], Sequence[Figures]]
"""By scenario and contender, in the order of the rounds."""
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


def verdicts(rounds: Rounds, rate_per_s: float) -> list[Verdict]:
    """Each bound whose scenario was measured.

    Figures are medians over the rounds. A ratio is the median of each round's
    own: the two were measured one right after the other, so that what else
    runs on the machine meets both.
    """
    found: list[Verdict] = []
    if (CLOSED, OURS) in rounds:
        rate = _ratio(rounds, CLOSED, "rate_per_s")
        cpu = _ratio(rounds, CLOSED, "cpu_us_per_request")
        found += [
            Verdict("closed loop: rate over perf_analyzer's", rate, 0.95, at_least=True),
            Verdict("closed loop: CPU time a request over perf_analyzer's", cpu, 1.5),
        ]
    if (OPEN, OURS) in rounds:
        off = abs(_median(rounds, OPEN, "rate_per_s") / rate_per_s - 1) * 100
        late_ms = _median(rounds, OPEN, "late_p99_ms")
        latency = _ratio(rounds, OPEN, "p99_ms")
        found += [
            Verdict("open loop: rate off by, percent", off, 0.1),
            Verdict("open loop: p99 of sent after due, ms", late_ms, 1.0),
            Verdict("open loop: p99 latency over perf_analyzer's", latency, 1.3),
        ]
    if (STREAMS, OURS) in rounds:
        cores, error_ms = (_median(rounds, STREAMS, name) for name in ("cores", "gap_error_p99_ms"))
        found += [
            Verdict("streams: cores of the client", cores, 0.5),
            Verdict("streams: p99 of inter-token time off by, ms", error_ms, 1.0),
        ]
    return found


def _median(rounds: Rounds, scenario: str, name: str) -> float:
    return float(statistics.median(getattr(figures, name) for figures in rounds[scenario, OURS]))


def _ratio(rounds: Rounds, scenario: str, name: str) -> float:
    pairs = zip(rounds[scenario, OURS], rounds[scenario, ANCHOR], strict=True)
    return float(statistics.median(getattr(ours, name) / getattr(anchor, name) for ours, anchor in pairs))
