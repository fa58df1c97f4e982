"""The figures of a load generator in a scenario, the bounds for our figures, and the table of both."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

CLOSED, OPEN, STREAMS = "closed loop", "open loop", "streams"
LEVELS = {CLOSED: 32, OPEN: 1000, STREAMS: 64}
"""Outstanding requests, requests per second, and concurrent streams."""
OURS, ANCHOR = "ours", "perf_analyzer"


class Figures(TypedDict, total=False):
    """The figures of one round. Some load generators and scenarios lack some figures."""

    rate_per_s: float
    """Answered requests (open loop: sent requests; streams: tokens) per second."""
    cpu_us_per_request: float
    """CPU time of the client per request, in microseconds."""
    p50_ms: float
    """Median latency from the send, in milliseconds."""
    p99_ms: float
    """p99 latency from the send, in milliseconds."""
    late_p99_ms: float
    """p99 of the delay between a request's scheduled time and its send, in milliseconds."""
    cores: float
    """CPU time of the client divided by wall time."""
    gap_error_p99_ms: float
    """p99 of the difference between client's and server's inter-token times, in milliseconds."""


Rounds = Mapping[tuple[str, str], Sequence[Figures]]
"""The figures of each round, by scenario and load generator."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile by the nearest-rank method."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def of_client(latencies_s: Sequence[float], cpu_s: float, wall_s: float, requests: int) -> Figures:
    """Return the figures that every loop has: latencies, and the client's CPU time."""
    return {
        "cpu_us_per_request": cpu_s / requests * 1e6,
        "p50_ms": percentile(latencies_s, 0.5) * 1e3,
        "p99_ms": percentile(latencies_s, 0.99) * 1e3,
        "cores": cpu_s / wall_s,
    }


@dataclass(frozen=True)
class Bound:
    """A limit for one of our figures in a scenario."""

    scenario: str
    what: str
    limit: float
    figure: Callable[[Figures, Figures], float]
    """Computes the value from the figures of a round: ours and, except for streams, perf_analyzer's."""
    at_least: bool = False
    """Whether ``limit`` is the least value instead of the largest value."""


def _over_anchor(name: str) -> Callable[[Figures, Figures], float]:
    return lambda ours, anchors: float(ours[name] / anchors[name])  # type: ignore[literal-required]


BOUNDS = (
    Bound(CLOSED, "rate over perf_analyzer's", 0.95, _over_anchor("rate_per_s"), at_least=True),
    Bound(CLOSED, "CPU time per request over perf_analyzer's", 1.5, _over_anchor("cpu_us_per_request")),
    Bound(OPEN, "rate off by, percent", 0.1, lambda our, _: abs(our["rate_per_s"] / LEVELS[OPEN] - 1) * 100),
    Bound(OPEN, "p99 of sent after due, ms", 1.0, lambda our, _: our["late_p99_ms"]),
    Bound(OPEN, "p99 latency over perf_analyzer's", 1.3, _over_anchor("p99_ms")),
    Bound(STREAMS, "cores of the client", 0.5, lambda our, _: our["cores"]),
    Bound(STREAMS, "p99 of inter-token time off by, ms", 1.0, lambda our, _: our["gap_error_p99_ms"]),
)


class Verdict(NamedTuple):
    """The value of a bound's figure, and whether the bound is kept."""

    bound: str
    value: float
    kept: bool

    def __str__(self) -> str:
        return f"{'kept  ' if self.kept else 'BROKEN'} {self.bound}: {self.value:.3g}"


def verdicts(rounds: Rounds) -> list[Verdict]:
    """Return a verdict on each bound whose scenario was measured, by the median over the rounds.

    A ratio is the median of the ratios of each round: the two load generators run one right after the other,
    so other load on the machine affects both.
    """
    judged = []
    for bound in BOUNDS:
        ours = rounds.get((bound.scenario, OURS), ())
        pairs = zip(ours, rounds.get((bound.scenario, ANCHOR), ours), strict=True)
        if values := [bound.figure(*pair) for pair in pairs]:
            value = statistics.median(values)
            kept, sign = (value >= bound.limit, "least") if bound.at_least else (value <= bound.limit, "most")
            judged.append(Verdict(f"{bound.scenario}: {bound.what}, at {sign} {bound.limit:g}", value, kept))
    return judged


_RATE = {CLOSED: "answers/s", OPEN: "sent/s", STREAMS: "tokens/s"}
_COLUMNS = {
    "cpu_us_per_request": "CPU us/request",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "late_p99_ms": "p99 late ms",
    "cores": "cores",
    "gap_error_p99_ms": "p99 gap error ms",
}
_TITLES = {
    CLOSED: "{} requests at once",
    OPEN: "{} requests per second",
    STREAMS: "{} streams, 50 tokens/s each",
}


def report(rounds: Rounds, judged: Iterable[Verdict]) -> str:
    """Return a table for each scenario, with medians and the range of the rounds, and the verdicts."""
    lines: list[str] = []
    for scenario, title in _TITLES.items():
        rows = {name: figures for (measured, name), figures in rounds.items() if measured == scenario}
        if not rows:
            continue
        known = {key for figures in rows.values() for round_figures in figures for key in round_figures}
        columns = {
            key: name for key, name in {"rate_per_s": _RATE[scenario], **_COLUMNS}.items() if key in known
        }
        lines.append(f"{scenario}, {title.format(LEVELS[scenario])}: median (lowest to highest)")
        lines.append(" " * 16 + "".join(f"{name:>30}" for name in columns.values()))
        for name, figures in rows.items():
            lines.append(f"  {name:<14}" + "".join(f"{_cell(figures, key):>30}" for key in columns))
        lines.append("")
    return "\n".join([*lines, *map(str, judged)])


def _cell(rounds: Sequence[Figures], key: str) -> str:
    values = [float(figures[key]) for figures in rounds if key in figures]  # type: ignore[literal-required]
    if not values:
        return "-"
    return f"{_short(statistics.median(values))} ({_short(min(values))} to {_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:,.1f}" if value >= 100 else f"{value:.3g}"
