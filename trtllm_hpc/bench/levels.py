"""The levels of load of a measurement, which are run one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from trtllm_hpc.config.benchmark import Benchmark


@dataclass(frozen=True)
class OpenLoop:
    """Requests are sent at times fixed beforehand, whether or not earlier ones are answered."""

    rate_per_s: float
    arrival: str = "poisson"
    """``constant``, ``poisson``, ``gamma`` or ``trace``."""
    burstiness: float = 1.0
    """Shape of ``gamma`` gaps."""
    kind: Literal["open-loop"] = "open-loop"

    @property
    def label(self) -> str:
        """Its name in tables and plots, e.g. ``8/s``."""
        if self.arrival == "trace":
            return "trace"
        return f"{self.rate_per_s:g}/s"


@dataclass(frozen=True)
class ClosedLoop:
    """A fixed number of requests is outstanding: each answer lets the next one be sent."""

    concurrency: int
    kind: Literal["closed-loop"] = "closed-loop"

    @property
    def label(self) -> str:
        """Its name in tables and plots, e.g. ``32 at once``."""
        return f"{self.concurrency} at once"


Level = OpenLoop | ClosedLoop


def levels_of(settings: Benchmark) -> list[Level]:
    """Return the levels in the order in which they are run."""
    concurrencies = settings.concurrencies or ([settings.concurrency] if settings.concurrency else [])
    if concurrencies:
        return [ClosedLoop(concurrency) for concurrency in concurrencies]
    rates = settings.rates_per_second or [settings.rate_per_second]
    return [OpenLoop(rate, settings.arrival, settings.burstiness) for rate in rates]
