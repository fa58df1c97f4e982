"""Find the highest rate at which limits hold, by doubling and bisection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtllm_hpc.bench.analysis.slo import Slo
from trtllm_hpc.bench.analysis.validity import sentence_of
from trtllm_hpc.bench.results import Pass, SearchResult, Tried

PRECISION = 0.05
"""The search ends when the lowest failing rate exceeds the highest that holds by less than this share."""
HIGHEST_PER_S = 100_000.0
"""No higher rate is tried: it is the highest that the settings allow."""
LOWEST_SHARE = 1 / 64
"""No rate below this share of the first is tried, because low rates take long to measure."""
MAX_TRIED = 40
"""Rates after which the search ends without having reached its precision."""


@dataclass(frozen=True)
class RateOutcome:
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


def outcome_of(passes: Sequence[Pass], slo: Slo, max_error_share: float) -> RateOutcome:
    """Judge the passes at one rate.

    A pass holds if its figures keep the limits, the server kept up with the load, and no
    more requests failed than allowed. A pass that is invalid for another reason, above
    all a client at its limit, says nothing about the server and is ignored. If no pass is
    left, or no request was answered in any, the rate is unusable.
    """
    if not any(one.measured > one.failed for one in passes):
        why = "No request was answered. Check the server; if it was only overloaded, start at a lower rate."
        return RateOutcome(0, len(passes), [], unusable=why)
    held, judged, broken = 0, 0, list[str]()
    for one in passes:
        violations = slo.violations(one.metrics)
        if one.failed > max_error_share * one.measured:
            violations.append(f"{one.failed} of {one.measured} requests failed.")
        if one.verdict.unsteady:
            violations.append("Latency grew over the window: the server did not keep up.")
        if one.verdict.client_limited or (not violations and not one.verdict.valid):
            continue
        judged += 1
        held += not violations
        broken += [sentence for sentence in violations if sentence not in broken]
    if not judged:
        verdict = passes[-1].verdict
        client = "The client, not the server, is the limit"
        reason = client if verdict.client_limited else "The figures are invalid"
        why = " ".join(map(sentence_of, verdict.findings))
        return RateOutcome(0, len(passes), [], unusable=f"{reason}: {why}")
    return RateOutcome(held, judged, broken)


def find_max(
    measure: Callable[[float], RateOutcome], start_per_s: float, slo: str, *, precision: float = PRECISION
) -> SearchResult:
    """Find the highest rate at which the limits hold.

    From the first rate on, the search doubles while the limits hold, or halves until they do. Then it bisects
    until the lowest failing rate exceeds the highest that holds by less than ``precision``. It ends early,
    and ``stopped`` names the reason, after ``MAX_TRIED`` rates, below ``LOWEST_SHARE`` of the first rate, if
    the limits hold at ``HIGHEST_PER_S``, or at a rate whose passes cannot be used, since nothing can be known
    above it. ``measure`` runs the passes at a rate and judges them, see :func:`outcome_of`.
    """
    low: float | None = None
    high: float | None = None
    rate, tried, stopped = start_per_s, list[Tried](), None
    while stopped is None:
        outcome = measure(rate)
        if outcome.unusable is not None:
            stopped = f"The search ended at {rate:g}/s. {outcome.unusable}"
            break
        level = len(tried)  # each rate is a level of the measurement
        tried.append(Tried(rate, outcome.holds, outcome.passes_held, outcome.passes, outcome.broken, level))
        if len(tried) >= MAX_TRIED:
            stopped = f"The search ended after {MAX_TRIED} rates."
        if outcome.holds:
            low = rate
        else:
            high = rate
        if low is None:
            if rate / 2 < start_per_s * LOWEST_SHARE:
                stopped = f"The limits do not hold even at {rate:g}/s."
            rate /= 2
        elif high is None:
            if rate >= HIGHEST_PER_S:
                stopped = f"The limits hold even at {rate:g}/s, the highest rate that can be requested."
            rate = min(2 * rate, HIGHEST_PER_S)
        elif (high - low) / low < precision:
            break
        else:
            rate = (low + high) / 2
    return SearchResult(slo, low, high, tried, stopped)
