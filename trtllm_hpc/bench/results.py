"""What a measurement has found, as it stands in ``results/NAME.json``.

Figures of a single number are floats; those over requests are
:class:`Distribution`. Units stand in the keys (``ttft_ms``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_hpc.bench.levels import ClosedLoop, OpenLoop
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.paths import read_json, write_json

FORMAT = 1
"""Of the file; a reader refuses any other."""


@dataclass(frozen=True)
class Distribution:
    """One figure over all measured requests of a pass, in the unit of its metric."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    count: int
    """Values that it is made of."""


Figure = float | Distribution


@dataclass(frozen=True)
class Interval:
    """A figure over repeats: their mean, and where the true mean lies with 95 % confidence."""

    mean: float
    low: float | None = None
    """``None`` with a single pass, which tells nothing of the spread."""
    high: float | None = None


@dataclass(frozen=True)
class Window:
    """The measured part of a pass, in seconds of the measurement's clock.

    Requests that were due within it are measured, however late they end.
    What arrives after ``end_s`` counts for no rate: the load is draining.
    """

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Its length in seconds."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Verdict:
    """What is wrong with figures, in sentences."""

    findings: list[str] = field(default_factory=list)
    """Each makes the figures useless."""
    warnings: list[str] = field(default_factory=list)
    """Each must be known to whoever reads the figures."""
    client_limited: bool = False
    """Whether the load generator was the limit: nothing is known of the server."""
    unsteady: bool = False
    """Whether latency grew over the window: the server did not keep up with the load."""

    @property
    def valid(self) -> bool:
        """Whether the figures may be used."""
        return not self.findings


@dataclass(frozen=True)
class ClientUse:
    """What the load generator itself took, over one pass."""

    cpu_s: float
    """CPU time of all its processes."""
    wall_s: float
    busiest_share: float
    """CPU time of the busiest process over wall time: 1.0 is a core, the most that Python can use. While it
    sent or over the whole pass, whichever is more: who waits for a last slow answer has little to do."""
    processes: int = 1
    real_time: bool = False
    """Whether it went before ordinary processes, see :mod:`trtllm_hpc.bench.load.process`."""


@dataclass(frozen=True)
class Pass:
    """One run over one level."""

    repeat: int
    started_s: float
    """When its first request was due, on the measurement's clock."""
    ended_s: float
    """When its last answer was there."""
    window: Window
    sent: int
    """Requests sent, warm-up included."""
    measured: int
    failed: int
    """Measured requests without a whole answer."""
    metrics: dict[str, Figure]
    client: ClientUse
    verdict: Verdict


@dataclass(frozen=True)
class LevelResult:
    """One level of load: each pass over it, and the figures over all of them."""

    level: OpenLoop | ClosedLoop
    passes: list[Pass]
    metrics: dict[str, Interval | dict[str, Interval]]
    """By the metric's key; of a distribution each statistic by its name (``p99``)."""


@dataclass(frozen=True)
class Tried:
    """One rate that the search tried."""

    rate_per_s: float
    holds: bool
    passes_held: int
    passes: int
    broken: list[str]
    """Why it does not hold, in sentences."""
    level: int
    """Its place among the levels of the measurement."""


@dataclass(frozen=True)
class SearchResult:
    """The highest rate at which the limits hold."""

    slo: str
    max_rate_per_s: float | None
    """``None`` if not even the lowest rate tried holds."""
    first_failing_per_s: float | None
    """The lowest rate tried above it that fails; ``None`` if none did."""
    tried: list[Tried]
    """In the order of the search."""
    stopped: str | None = None
    """Why the search ended before its precision was reached, in a sentence."""


@dataclass(frozen=True)
class Measurement:
    """One measurement; its records, samples and workload have files of their own."""

    name: str
    started_at: float
    """Seconds since the epoch, of the zero of all other times; for people, never for figures."""
    settings: dict[str, Any]
    """``companion.benchmark`` with every default written out."""
    model: str
    protocol: str
    streaming: bool
    provenance: dict[str, Any]
    """Run, image, engine key, nodes, GPUs, versions: see :mod:`trtllm_hpc.bench.provenance`."""
    levels: list[LevelResult]
    tokens: dict[str, Any]
    """Totals of measured requests, and who counted them."""
    errors: dict[str, int]
    """Each kind of error with its number of measured requests."""
    verdict: Verdict
    search: SearchResult | None = None
    format: int = FORMAT


def write_measurement(path: Path, measurement: Measurement) -> None:
    """Write it as JSON, whole or not at all."""
    from pydantic import TypeAdapter

    plain = TypeAdapter(Measurement).dump_python(measurement, mode="json")
    write_json(path, {"valid": measurement.verdict.valid, **plain})


def read_measurement(path: Path) -> Measurement:
    """Read what :func:`write_measurement` wrote.

    Raises:
        RunNotFound: there is none, or it is another version's.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        plain = read_json(path)
        if isinstance(plain, dict) and plain.get("format", FORMAT) == FORMAT:
            return TypeAdapter(Measurement).validate_python(plain)
    except (ValueError, ValidationError):
        pass
    raise RunNotFound(
        f"{path} is no measurement that this version can read.",
        hint="trtllm-hpc bench RUN",
    )
