"""Find the highest rate at which limits hold, by doubling and bisection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trtllm_hpc.bench.analysis.slo import Slo
from trtllm_hpc.bench.results import Figure, Pass, SearchResult, Tried

PRECISION = 0.05
"""The search ends when the lowest failing rate exceeds the highest that holds by less than this share."""
HIGHEST_PER_S = 100_000.0
"""No higher rate is tried: it is the highest that the settings allow."""
LOWEST_SHARE = 1 / 64
"""No rate below this share of the first is tried, because low rates take long to measure."""
MAX_TRIED = 40


@dataclass(frozen=True)
class Outcome:
    """What the passes at one rate showed."""

    passes_held: int
    passes: int
    broken: list[str]
    """Why passes did not hold, in sentences."""
    unusable: str | None = None
    """Why the passes say nothing about the server, in a sentence: the search ends there."""

    @property
    def holds(self) -> bool:
        """Whether more than half of the passes held."""
        return 2 * self.passes_held > self.passes


def outcome_of(passes: Sequence[Pass], slo: Slo, max_error_share: float) -> Outcome:
    """Judge the passes at one rate.

    A pass holds if its figures keep the limits, the server kept up with the load, and no
    more requests failed than allowed. A pass that is invalid for another reason, above
    all a client at its limit, says nothing about the server and is ignored. If no pass is
    left, or no request was answered in any, the rate is unusable.
    """
    if not any(one.measured > one.failed for one in passes):
        why = "No request was answered. Check the server; if it was only overloaded, start at a lower rate."
        return Outcome(0, len(passes), [], unusable=why)
    held, judged, broken = 0, 0, list[str]()
    for one in passes:
        violations = _violations(one, slo, max_error_share)
        if one.verdict.client_limited or (not violations and not one.verdict.valid):
            continue
        judged += 1
        held += not violations
        broken += [sentence for sentence in violations if sentence not in broken]
    if not judged:
        return Outcome(0, len(passes), [], unusable=_unusable(passes[-1]))
    return Outcome(held, judged, broken)


def _violations(one: Pass, slo: Slo, max_error_share: float) -> list[str]:
    """Return what the server did wrong in a pass, in sentences."""
    violations = slo.violations(one.metrics)
    if _error_share(one.metrics) > max_error_share:
        violations.append(f"{one.failed} of {one.measured} requests failed.")
    if one.verdict.unsteady:
        violations.append("Latency grew over the window: the server did not keep up.")
    return violations


def _error_share(figures: dict[str, Figure]) -> float:
    share = figures.get("error_share", 0.0)
    return share if isinstance(share, float | int) else 0.0


def _unusable(one: Pass) -> str:
    client = "The client, not the server, is the limit"
    reason = client if one.verdict.client_limited else "The figures are invalid"
    return f"{reason}: {' '.join(one.verdict.findings)}"


def find_max(
    measure: Callable[[float], Outcome], start_per_s: float, slo: str, *, precision: float = PRECISION
) -> SearchResult:
    """Find the highest rate at which the limits hold.

    From the first rate on, the search doubles while the limits hold, or halves until they
    do. Then it bisects until the lowest failing rate exceeds the highest that holds by
    less than ``precision``. It ends early, and says so, at a rate whose passes cannot be
    used, since nothing can be known above it.

    Args:
        measure: runs the passes at a rate and judges them, see :func:`outcome_of`.
        slo: the limits as text, for the result.
    """
    search = _Search(measure)
    rate: float | None = start_per_s
    while rate is not None and search.stopped is None:
        search.attempt(rate)
        rate = search.next_rate(start_per_s, precision)
    return SearchResult(slo, search.low, search.high, search.tried, search.stopped)


@dataclass
class _Search:
    measure: Callable[[float], Outcome]
    low: float | None = None
    """The highest rate that held."""
    high: float | None = None
    """The lowest rate that failed."""
    tried: list[Tried] = field(default_factory=list)
    stopped: str | None = None

    def attempt(self, rate: float) -> None:
        outcome = self.measure(rate)
        if outcome.unusable is not None:
            self.stopped = f"The search ended at {rate:g}/s. {outcome.unusable}"
            return
        level = len(self.tried)  # each rate is a level of the measurement
        self.tried.append(
            Tried(rate, outcome.holds, outcome.passes_held, outcome.passes, outcome.broken, level)
        )
        if outcome.holds:
            self.low = rate
        else:
            self.high = rate
        if len(self.tried) >= MAX_TRIED:
            self.stopped = f"The search ended after {MAX_TRIED} rates."

    def next_rate(self, start: float, precision: float) -> float | None:
        """Return the rate to try next; ``None`` if the search is over."""
        if self.low is None:
            return None if self.high is None else self._halved(self.high, start)
        if self.high is None:
            return self._doubled(self.low)
        if (self.high - self.low) / self.low < precision:
            return None
        return (self.low + self.high) / 2

    def _halved(self, rate: float, start: float) -> float | None:
        if rate / 2 >= start * LOWEST_SHARE:
            return rate / 2
        self.stopped = f"The limits do not hold even at {rate:g}/s."
        return None

    def _doubled(self, rate: float) -> float | None:
        if rate < HIGHEST_PER_S:
            return min(2 * rate, HIGHEST_PER_S)
        self.stopped = f"The limits hold even at {rate:g}/s, the highest rate that can be requested."
        return None
