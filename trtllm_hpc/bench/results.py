"""The levels of load of a measurement, and its results, as written to ``results/NAME.json``.

A figure is a float, or a :class:`Distribution` over requests. Keys end with the unit (``ttft_ms``).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.paths import RunPaths, call_name, read_json, write_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

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
        return "trace" if self.arrival == "trace" else f"{self.rate_per_s:g}/s"


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


@dataclass(frozen=True)
class Distribution:
    """The distribution of a figure over the measured requests of a pass, in the unit of its metric."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    count: int


Figure = float | Distribution


@dataclass(frozen=True)
class Interval:
    """The mean of a figure over repeats, with its 95 % confidence interval."""

    mean: float
    low: float | None = None
    """``None`` for a single pass, whose spread is unknown."""
    high: float | None = None


@dataclass(frozen=True)
class Window:
    """The measured part of a pass, in seconds on the measurement's clock.

    Requests that are due within it are measured, however late they end. What arrives
    after ``end_s`` counts for no rate, because the load is draining.
    """

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Energy:
    """Energy of all GPUs of the server in a window, added up."""

    joules: float
    slowed: str = ""
    """The GPUs that heat or a lack of power slowed down."""


@dataclass(frozen=True)
class Caveat:
    """A fact that makes figures invalid, or that their reader must know."""

    code: str
    """What it is about, one of :data:`trtllm_hpc.bench.analysis.validity.SENTENCES`."""
    value: float | None = None
    """As measured; of several passes the worst."""
    limit: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Other numbers and words of the sentence."""
    where: str = ""
    """The levels and passes that have it; empty: all of them, or the measurement as a whole."""
    sentence: str = ""
    """What it means, once all passes are put together."""

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}" if self.where else self.sentence


@dataclass(frozen=True)
class Verdict:
    """Whether figures are valid, and why not."""

    findings: list[Caveat] = field(default_factory=list)
    """Each makes the figures invalid."""
    warnings: list[Caveat] = field(default_factory=list)
    """Each is shown with the figures."""

    @property
    def valid(self) -> bool:
        """Whether the figures may be used."""
        return not self.findings

    @property
    def reasons(self) -> str:
        """Why they may not, in sentences."""
        return " ".join(map(str, self.findings))

    @property
    def client_limited(self) -> bool:
        """Whether the load generator was the limit: the figures say nothing about the server."""
        return any(finding.code in ("late", "client-busy") for finding in self.findings)

    @property
    def unsteady(self) -> bool:
        """Whether latency grew over the window, because the server did not keep up with the load."""
        return any(warning.code == "not-steady" for warning in self.warnings)


@dataclass(frozen=True)
class ClientUse:
    """The load generator's own use of CPU over one pass."""

    cpu_s: float
    """CPU time of all its processes."""
    wall_s: float
    busiest_share: float
    """CPU time of the busiest process over wall time: 1.0 is one core, the maximum for Python. The larger of
    the shares while sending and over the whole pass, since waiting for a last slow answer takes little."""
    processes: int = 1
    real_time: bool = False
    """Whether it went before ordinary processes, see :mod:`trtllm_hpc.bench.load.process`."""
    stamp_bound_s: float = 0.0
    """Over HTTP: what 99 % of the stamps of answers are late by at most, see
    :class:`trtllm_hpc.bench.load.timing.StampBounds`."""
    stall_s: float = 0.0
    """Over HTTP: for how long at most 99 % of the reads waited because the client had no core."""


@dataclass(frozen=True)
class Pass:
    """One pass over one level."""

    repeat: int
    started_s: float
    """When its first request was due, on the measurement's clock."""
    ended_s: float
    """When its last answer had arrived."""
    window: Window
    sent: int
    """Requests sent, warm-up included."""
    measured: int
    failed: int
    """Measured requests without a complete answer."""
    metrics: dict[str, Figure]
    client: ClientUse
    verdict: Verdict


@dataclass(frozen=True)
class TurnFigures:
    """The measured requests that were the same turn of their conversations."""

    turn: str
    """``1`` to ``8``, or ``9 and later``."""
    requests: int
    failed: int
    metrics: dict[str, Figure]
    """Of the answered requests."""


@dataclass(frozen=True)
class LevelResult:
    """One level of load: its passes, and the figures over all of them."""

    level: Level
    passes: list[Pass]
    metrics: dict[str, Interval | dict[str, Interval]]
    """By the metric's key; for a distribution, by the statistic's name, too (``p99``)."""
    turns: list[TurnFigures] = field(default_factory=list)
    """Of conversations, over all passes."""

    @property
    def measured(self) -> int:
        """Measured requests of all passes."""
        return sum(one.measured for one in self.passes)

    @property
    def failed(self) -> int:
        """Measured requests of all passes without a complete answer."""
        return sum(one.failed for one in self.passes)


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
    """Its index among the levels of the measurement."""


@dataclass(frozen=True)
class SearchResult:
    """The highest rate at which the limits hold."""

    slo: str
    max_rate_per_s: float | None
    """``None`` if the limits do not hold at any rate tried."""
    first_failing_per_s: float | None
    """The lowest failing rate above it; ``None`` if none failed."""
    tried: list[Tried]
    """In the order of the search."""
    stopped: str | None = None
    """Why the search ended early, in a sentence."""


@dataclass(frozen=True)
class MeasurementSummary:
    """One measurement. Its records, samples and workload have files of their own."""

    name: str
    started_at: float
    """Unix time of the zero of all other times; for display only."""
    settings: dict[str, Any]
    """``companion.benchmark`` with every default written out."""
    model: str
    protocol: str
    streaming: bool
    provenance: dict[str, Any]
    """Run, image, engine key, nodes, GPUs, versions: see :mod:`trtllm_hpc.bench.provenance`."""
    levels: list[LevelResult]
    tokens: dict[str, Any]
    """Token totals of measured requests, and how they were counted."""
    errors: dict[str, int]
    """The number of measured requests for each kind of error."""
    verdict: Verdict
    search: SearchResult | None = None
    """With ``find_max``: the highest rate at which the limits hold."""
    energy: str = ""
    """The source of the GPUs' energy, or why it is unknown; empty for a server without GPUs."""

    PRINTED: ClassVar[tuple[str, ...]] = ("valid",)
    """Properties that the file has too."""

    @property
    def valid(self) -> bool:
        """Whether the figures may be used."""
        return self.verdict.valid


@lru_cache(maxsize=1)
def _json_form() -> TypeAdapter[MeasurementSummary]:
    from pydantic import TypeAdapter

    return TypeAdapter(MeasurementSummary)


def write_measurement(path: Path, measurement: MeasurementSummary) -> None:
    """Write the measurement as JSON, atomically."""
    plain = _json_form().dump_python(measurement, mode="json")
    write_json(path, {"valid": measurement.valid, **plain})


def read_measurement(path: Path) -> MeasurementSummary:
    """Read what :func:`write_measurement` wrote.

    Raises RunNotFound if the file is missing, or of another version.
    """
    with suppress(ValueError):  # pydantic's ValidationError is one
        return _json_form().validate_python(read_json(path))
    hint = f"trtllm-hpc bench {call_name(RunPaths(path.parent.parent))}"
    raise RunNotFound(f"{path} is not a measurement that this version can read.", hint=hint)
