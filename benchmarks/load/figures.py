"""The figures of one contender in one scenario, the bounds that ours must keep, and the table of both."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

CLOSED, OPEN, STREAMS = "closed loop", "open loop", "streams"
LEVELS = {CLOSED: 32, OPEN: 1000, STREAMS: 64}
"""Requests at once, requests a second, and streams at once."""
OURS, ANCHOR = "ours", "perf_analyzer"


class Figures(TypedDict, total=False):
    """The figures of one round, of which not every contender has each."""

    rate_per_s: float
    """Requests answered, in the open loop sent, in each second; in streams tokens."""
    cpu_us_per_request: float
    """CPU time of the client."""
    p50_ms: float
    p99_ms: float
    """Latency from the send."""
    late_p99_ms: float
    """Sent after it was due."""
    cores: float
    """CPU time of the client over wall time."""
    gap_error_p99_ms: float
    """Inter-token time as the client saw it, against the server's own stamps."""


Rounds = Mapping[tuple[str, str], Sequence[Figures]]
"""By scenario and contender, in the order of the rounds."""


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def of_client(latencies_s: Sequence[float], cpu_s: float, wall_s: float, requests: int) -> Figures:
    """The figures that every loop has: latencies, and the client's CPU time for so many requests."""
    return {
        "cpu_us_per_request": cpu_s / requests * 1e6,
        "p50_ms": percentile(latencies_s, 0.5) * 1e3,
        "p99_ms": percentile(latencies_s, 0.99) * 1e3,
        "cores": cpu_s / wall_s,
    }


@dataclass(frozen=True)
class Bound:
    """What our figures of a scenario must keep."""

    scenario: str
    what: str
    limit: float
    figure: Callable[[Figures, Figures], float]
    """From our figures of a round and those of perf_analyzer, which has none of streams."""
    at_least: bool = False


def _over_anchor(name: str) -> Callable[[Figures, Figures], float]:
    return lambda ours, anchors: float(ours[name] / anchors[name])  # type: ignore[literal-required]


BOUNDS = (
    Bound(CLOSED, "rate over perf_analyzer's", 0.95, _over_anchor("rate_per_s"), at_least=True),
    Bound(CLOSED, "CPU time a request over perf_analyzer's", 1.5, _over_anchor("cpu_us_per_request")),
    Bound(OPEN, "rate off by, percent", 0.1, lambda our, _: abs(our["rate_per_s"] / LEVELS[OPEN] - 1) * 100),
    Bound(OPEN, "p99 of sent after due, ms", 1.0, lambda our, _: our["late_p99_ms"]),
    Bound(OPEN, "p99 latency over perf_analyzer's", 1.3, _over_anchor("p99_ms")),
    Bound(STREAMS, "cores of the client", 0.5, lambda our, _: our["cores"]),
    Bound(STREAMS, "p99 of inter-token time off by, ms", 1.0, lambda our, _: our["gap_error_p99_ms"]),
)


class Verdict(NamedTuple):
    """Whether one bound is kept."""

    bound: str
    value: float
    kept: bool

    def __str__(self) -> str:
        return f"{'kept  ' if self.kept else 'BROKEN'} {self.bound}: {self.value:.3g}"


def verdicts(rounds: Rounds) -> list[Verdict]:
    """Each bound whose scenario was measured, by the median over the rounds.

    A ratio is the median of each round's own: the two were measured one right after the other, so that what
    else runs on the machine meets both.
    """
    found = []
    for bound in BOUNDS:
        ours = rounds.get((bound.scenario, OURS), ())
        pairs = zip(ours, rounds.get((bound.scenario, ANCHOR), ours), strict=True)
        if values := [bound.figure(*pair) for pair in pairs]:
            value = statistics.median(values)
            kept, sign = (value >= bound.limit, "least") if bound.at_least else (value <= bound.limit, "most")
            found.append(Verdict(f"{bound.scenario}: {bound.what}, at {sign} {bound.limit:g}", value, kept))
    return found


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
    OPEN: "{} requests a second",
    STREAMS: "{} streams, 50 tokens/s each",
}


def report(rounds: Rounds, judged: Iterable[Verdict]) -> str:
    """Medians with the range of the rounds, scenario by scenario, and the bounds."""
    lines: list[str] = []
    for scenario, title in _TITLES.items():
        rows = {name: figures for (of, name), figures in rounds.items() if of == scenario}
        if not rows:
            continue
        known = {key for figures in rows.values() for one in figures for key in one}
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
