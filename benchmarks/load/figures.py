"""The figures of one contender in one scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

CLOSED, OPEN, STREAMS = "closed loop", "open loop", "streams"


@dataclass(frozen=True)
class Figures:
    """The figures of one round; ``None`` where a figure does not apply."""

    rate_per_s: float | None = None
    """Requests answered, in the open loop sent, in each second."""
    cpu_us_per_request: float | None = None
    """CPU time of the client."""
    p50_ms: float | None = None
    p99_ms: float | None = None
    """Latency from the send."""
    schedule_p99_ms: float | None = None
    """Latency from the time when a request was due."""
    late_p99_ms: float | None = None
    """Sent after it was due."""
    cores: float | None = None
    """CPU time of the client over wall time."""
    gap_error_p99_ms: float | None = None
    """Inter-token time as the client saw it, against the server's own stamps."""

    def as_dict(self) -> dict[str, float]:
        """The figures that apply, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
