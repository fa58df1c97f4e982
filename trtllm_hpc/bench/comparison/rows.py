"""Two measurements side by side, row by row."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trtllm_hpc.bench.comparison.tolerance import Tolerance
from trtllm_hpc.errors import ExitCode, InvalidMeasurement, TrtllmHpcError

CHANCE = 0.05
"""A difference is significant if chance alone makes it less often than this."""


class Worse(TrtllmHpcError):
    """The second measurement is worse than the first, beyond the tolerance."""

    exit_code = ExitCode.MEASUREMENT


@dataclass(frozen=True)
class Row:
    """One figure at one level of load, in both measurements."""

    level: str
    key: str
    label: str
    unit: str
    statistic: str | None
    """``None`` for a single number."""
    a: float
    b: float
    better: bool | None
    """Whether b is better than a; ``None`` if they are the same."""
    beyond: bool
    """Whether they are farther apart than the tolerance."""
    low: float | None = None
    """b - a lies between this and ``high`` with 95 % confidence; ``None`` if nothing tells the spread."""
    high: float | None = None
    p_value: float | None = None
    """How often chance alone makes so large a difference, adjusted for the number of rows."""

    @property
    def change(self) -> float | None:
        """By which share b is more than a; ``None`` where a is 0."""
        return self.b / self.a - 1 if self.a else None

    @property
    def significant(self) -> bool | None:
        """Whether the difference is more than chance; ``None`` if nothing tells."""
        return None if self.p_value is None else self.p_value < CHANCE

    @property
    def regressed(self) -> bool:
        """Whether b is worse beyond the tolerance, and known to be so by more than chance."""
        return self.beyond and self.better is False and self.significant is True

    @property
    def undecided(self) -> bool:
        """Whether the difference is beyond the tolerance, and nothing tells whether it is chance."""
        return self.beyond and self.significant is None


@dataclass(frozen=True)
class Comparison:
    """Two measurements side by side."""

    a: str
    b: str
    rows: list[Row]
    apart: list[str]
    """What was asked differently: figures are comparable only as far as that does not matter."""
    surroundings: list[str]
    """What else was different, such as the engine: what the comparison may be about."""
    notes: list[str]
    """What must be known to read the rows."""
    invalid: list[str]
    """Why figures may not be used, of either."""

    @property
    def regressed(self) -> list[Row]:
        """The rows that are worse, the worst first."""
        return sorted((row for row in self.rows if row.regressed), key=_size, reverse=True)

    def as_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        rows = [
            {**asdict(row), "change": row.change, "significant": row.significant, "regressed": row.regressed}
            for row in self.rows
        ]
        return {**asdict(self), "rows": rows, "worse": bool(self.regressed)}


def _size(row: Row) -> float:
    return float("inf") if row.change is None else abs(row.change)


def refuse_worse(comparison: Comparison, tolerance: Tolerance) -> None:
    """Raise if the second measurement is worse than the first, or if either has no figures to go by.

    Raises:
        InvalidMeasurement: either is invalid.
        Worse: which figures are worse, and by how much.
    """
    if comparison.invalid:
        raise InvalidMeasurement(" ".join(comparison.invalid))
    worse = comparison.regressed
    if worse:
        told = "; ".join(map(_told, worse[:5]))
        more = f"; and {len(worse) - 5} more" if len(worse) > 5 else ""
        raise Worse(
            f"{comparison.b} is worse than {comparison.a} by more than {tolerance} in {len(worse)} of "
            f"{len(comparison.rows)} figures: {told}{more}."
        )


def _told(row: Row) -> str:
    name = row.label if row.statistic is None else f"{row.label} ({row.statistic})"
    change = "" if row.change is None else f", {row.change:+.1%}"
    return f"{name} at {row.level}: {row.a:.4g} to {row.b:.4g} {row.unit}{change}"
