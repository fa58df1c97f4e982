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
"""Highest rate that the search tries, the maximum of the settings."""
LOWEST_SHARE = 1 / 64
"""Lowest rate that the search tries, as a share of the first, because low rates take long to measure."""
MAX_TRIED = 40
"""Number of rates after which the search ends, whatever its precision."""


@dataclass(frozen=True)
class RateOutcome:
    """The outcome of all passes at one rate."""

    passes_held: int
    """Number of passes that met the limits."""
    passes: int
    broken: list[str]
    """Sentences why passes did not meet the limits."""
    unusable: str | None = None
    """Sentence why the passes do not describe the server, which ends the search; ``None`` if they do."""

    @property
    def holds(self) -> bool:
        """Whether more than half of the passes held."""
        return 2 * self.passes_held > self.passes


def outcome_of(passes: Sequence[Pass], slo: Slo, max_error_share: float) -> RateOutcome:
    """Judge the passes at one rate.

    A pass holds if its figures meet the limits, the server kept up with the load, and no more requests failed
    than allowed. A pass that is invalid for another reason, such as a client at its limit, does not describe
    the server and is ignored. The rate is unusable if no pass is left, or if none has an answer.
    """
    if not any(result.measured > result.failed for result in passes):
        why = "No request was answered. Check the server; if it was only overloaded, start at a lower rate."
        return RateOutcome(0, len(passes), [], unusable=why)
    held, judged, broken = 0, 0, list[str]()
    for result in passes:
        violations = slo.violations(result.metrics)
        if result.failed > max_error_share * result.measured:
            violations.append(f"{result.failed} of {result.measured} requests failed.")
        if result.verdict.unsteady:
            violations.append("Latency grew over the window: the server did not keep up.")
        if result.verdict.client_limited or (not violations and not result.verdict.valid):
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

    From the first rate on, the search doubles the rate while the limits hold, or halves it until they do.
    Then it bisects until the lowest failing rate exceeds the highest that holds by less than ``precision``.
    It ends early, with the reason in ``stopped``, after ``MAX_TRIED`` rates, below ``LOWEST_SHARE`` of the
    first rate, if the limits hold at ``HIGHEST_PER_S``, or at an unusable rate. ``measure`` runs and judges
    the passes at a rate, see :func:`outcome_of`.
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
