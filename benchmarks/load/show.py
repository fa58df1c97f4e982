"""The table of the benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benchmarks.load.bounds import Verdict
from benchmarks.load.figures import CLOSED, OPEN, STREAMS, Figures

_COLUMNS = {
    CLOSED: {
        "rate_per_s": "answers/s",
        "cpu_us_per_request": "CPU us/request",
        "p50_ms": "p50 ms",
        "p99_ms": "p99 ms",
    },
    OPEN: {
        "rate_per_s": "sent/s",
        "late_p99_ms": "p99 late ms",
        "p50_ms": "p50 ms",
        "p99_ms": "p99 ms",
        "schedule_p99_ms": "p99 from due",
        "cpu_us_per_request": "CPU us/request",
    },
    STREAMS: {
        "rate_per_s": "tokens/s",
        "cores": "cores",
        "gap_error_p99_ms": "p99 gap error ms",
    },
}
_TITLES = {
    CLOSED: "{} requests at once",
    OPEN: "{} requests a second",
    STREAMS: "{} streams, 50 tokens/s each",
}


def report(
    rounds: Mapping[tuple[str, str], list[Figures]], judged: Iterable[Verdict], levels: Mapping[str, int]
) -> str:
    """Medians with the range of the rounds, scenario by scenario, and the bounds."""
    lines: list[str] = []
    for scenario, columns in _COLUMNS.items():
        rows = {name: figures for (of, name), figures in rounds.items() if of == scenario}
        if not rows:
            continue
        lines.append(f"{scenario}, {_TITLES[scenario].format(levels[scenario])}: median (lowest to highest)")
        lines.append(" " * 16 + "".join(f"{title:>30}" for title in columns.values()))
        for name, figures in rows.items():
            lines.append(f"  {name:<14}" + "".join(f"{_cell(figures, key):>30}" for key in columns))
        lines.append("")
    return "\n".join([*lines, *map(str, judged)])


def _cell(figures: list[Figures], key: str) -> str:
    values = sorted(value for one in figures if (value := getattr(one, key)) is not None)
    if not values:
        return "-"
    middle = values[len(values) // 2] if len(values) % 2 else sum(values[len(values) // 2 - 1 :][:2]) / 2
    return f"{_short(middle)} ({_short(values[0])} to {_short(values[-1])})"


def _short(value: float) -> str:
    return f"{value:,.1f}" if value >= 100 else f"{value:.3g}"
