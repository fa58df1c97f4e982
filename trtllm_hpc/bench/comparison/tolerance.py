"""How far apart two figures may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """The sum of a share of the first figure and a number, as ``numpy.testing.assert_allclose`` has it.

    Upstream's ``--check-perf-rtol`` and ``--check-perf-atol`` are these two.
    """

    relative: float = 0.05
    absolute: float = 0.0
    """In the unit of each figure. Upstream's 50 hides a latency that goes from 10 to 60 ms."""

    def __str__(self) -> str:
        relative = f"{self.relative * 100:.4g} %"
        return f"{self.absolute:g} and {relative}" if self.absolute else relative

    def exceeded(self, before: float, after: float) -> bool:
        """Whether ``after`` is farther from ``before`` than allowed."""
        return abs(after - before) > self.absolute + self.relative * abs(before)


UPSTREAM = Tolerance(relative=0.05, absolute=50.0)
"""The defaults of ``benchmark_core_model.py``."""
