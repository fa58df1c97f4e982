"""Levels of load, and the results of a measurement as ``results/NAME.json`` has them.

A figure is a float or a :class:`Distribution` over requests. Its key ends with the unit (``ttft_ms``).
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
    """A load that sends requests at fixed times, whether or not earlier ones are answered."""

    rate_per_s: float
    arrival: str = "poisson"
    """``constant``, ``poisson``, ``gamma`` or ``trace``."""
    burstiness: float = 1.0
    """Shape of ``gamma`` gaps."""
    kind: Literal["open-loop"] = "open-loop"

    @property
    def label(self) -> str:
        """Name in tables and plots, e.g. ``8/s``."""
        return "trace" if self.arrival == "trace" else f"{self.rate_per_s:g}/s"


@dataclass(frozen=True)
class ClosedLoop:
    """A load with a fixed number of requests in flight: each answer triggers the next request."""

    concurrency: int
    kind: Literal["closed-loop"] = "closed-loop"

    @property
    def label(self) -> str:
        """Name in tables and plots, e.g. ``32 at once``."""
        return f"{self.concurrency} at once"


Level = OpenLoop | ClosedLoop


def levels_of(settings: Benchmark) -> list[Level]:
    """Return the levels of load in the order of measurement."""
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
    """Lower end of the interval; ``None`` for a single pass, whose spread is unknown."""
    high: float | None = None
    """Upper end of the interval."""


@dataclass(frozen=True)
class Window:
    """The measured part of a pass, in seconds on the measurement's clock.

    Requests due in the window are measured, however late they end. Rates ignore answers after ``end_s``,
    because the load is draining then.
    """

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Energy:
    """Energy of all GPUs of the server in a window."""

    joules: float
    slowed: str = ""
    """GPUs that heat or a lack of power slowed down, with the reasons."""


@dataclass(frozen=True)
class Caveat:
    """A fact that makes figures invalid, or a warning to their reader."""

    code: str
    """Kind of the fact, a key of :data:`trtllm_hpc.bench.analysis.validity.SENTENCES`."""
    value: float | None = None
    """Measured value; the worst of several passes."""
    limit: float | None = None
    """Limit of the value."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further numbers and words of the sentence."""
    where: str = ""
    """Levels of load with this fact; empty: all levels, or the measurement as a whole."""
    sentence: str = ""
    """The sentence for people, set once all passes are merged."""

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}" if self.where else self.sentence


@dataclass(frozen=True)
class Verdict:
    """Whether figures are valid, and why not."""

    findings: list[Caveat] = field(default_factory=list)
    """Facts that make the figures invalid."""
    warnings: list[Caveat] = field(default_factory=list)
    """Facts that are shown with the figures."""

    @property
    def valid(self) -> bool:
        """Whether the figures are valid."""
        return not self.findings

    @property
    def reasons(self) -> str:
        """Sentences why the figures are invalid."""
        return " ".join(map(str, self.findings))

    @property
    def client_limited(self) -> bool:
        """Whether the load generator was the limit, so that the figures do not describe the server."""
        return any(finding.code in ("late", "client-busy") for finding in self.findings)

    @property
    def unsteady(self) -> bool:
        """Whether latency grew over the window, because the server did not keep up with the load."""
        return any(warning.code == "not-steady" for warning in self.warnings)


@dataclass(frozen=True)
class ClientUse:
    """The load generator's use of CPU in one pass."""

    cpu_s: float
    """CPU time of all client processes, in seconds."""
    wall_s: float
    busiest_share: float
    """CPU time of the busiest process over wall time; 1.0 is one core, the maximum of Python. The larger of
    the shares while sending and over the whole pass, because the wait for a last slow answer needs little
    CPU."""
    processes: int = 1
    real_time: bool = False
    """Whether the client had real-time priority, see :mod:`trtllm_hpc.bench.load.process`."""
    stamp_bound_s: float = 0.0
    """Over HTTP: 99 % of the timestamps of answers are at most this late, in seconds, see
    :class:`trtllm_hpc.bench.load.timing.StampBounds`."""
    stall_s: float = 0.0
    """Over HTTP: 99 % of the reads waited at most this long for a core, in seconds."""


@dataclass(frozen=True)
class Pass:
    """One pass over one level."""

    repeat: int
    started_s: float
    """Due time of the first request, in seconds on the measurement's clock."""
    ended_s: float
    """Arrival of the last answer, in seconds on the same clock."""
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
    """Figures of all measured requests that are the same turn of their conversations."""

    turn: str
    """Number of the turn: ``1`` to ``8``, or ``9 and later``."""
    requests: int
    failed: int
    metrics: dict[str, Figure]
    """Figures of the answered requests, by metric key."""


@dataclass(frozen=True)
class LevelResult:
    """One level of load: its passes, and the figures over all of them."""

    level: Level
    passes: list[Pass]
    metrics: dict[str, Interval | dict[str, Interval]]
    """Means over passes by metric key; for a distribution, also by statistic (``p99``)."""
    turns: list[TurnFigures] = field(default_factory=list)
    """Figures by turn of conversations, over all passes."""

    @property
    def measured(self) -> int:
        """Number of measured requests in all passes."""
        return sum(result.measured for result in self.passes)

    @property
    def failed(self) -> int:
        """Number of measured requests in all passes without a complete answer."""
        return sum(result.failed for result in self.passes)


@dataclass(frozen=True)
class Tried:
    """One rate that the search tried."""

    rate_per_s: float
    holds: bool
    passes_held: int
    passes: int
    broken: list[str]
    """Sentences why the limits do not hold at this rate."""
    level: int
    """Index of the rate's level in the measurement."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search for the highest rate at which the limits hold."""

    slo: str
    """Limits of the search."""
    max_rate_per_s: float | None
    """Highest rate at which the limits hold; ``None`` if they hold at no tried rate."""
    first_failing_per_s: float | None
    """Lowest failing rate above ``max_rate_per_s``; ``None`` if no rate failed."""
    tried: list[Tried]
    """Tried rates in the order of the search."""
    stopped: str | None = None
    """Why the search ended early, in a sentence; ``None`` if it came to its end."""


@dataclass(frozen=True)
class MeasurementSummary:
    """One measurement, except for its records, samples and workload, which have their own files."""

    name: str
    started_at: float
    """Unix time at which the measurement's clock is 0; for display only."""
    settings: dict[str, Any]
    """``companion.benchmark`` with every default."""
    model: str
    protocol: str
    streaming: bool
    provenance: dict[str, Any]
    """Run, image, engine key, nodes, GPUs, versions: see :mod:`trtllm_hpc.bench.provenance`."""
    levels: list[LevelResult]
    tokens: dict[str, Any]
    """Token totals of measured requests, and who counted them."""
    errors: dict[str, int]
    """Number of measured requests by error message."""
    verdict: Verdict
    search: SearchResult | None = None
    """With ``find_max``: the search and its result."""
    energy: str = ""
    """Source of the GPUs' energy, or why the energy is unknown; empty for a server without GPUs."""

    PRINTED: ClassVar[tuple[str, ...]] = ("valid",)
    """Properties that the file contains, too."""

    @property
    def valid(self) -> bool:
        """Whether the figures are valid."""
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
    """Read a file of :func:`write_measurement`. Raises RunNotFound if it is missing or of another version."""
    with suppress(ValueError):  # pydantic's ValidationError is one
        return _json_form().validate_python(read_json(path))
    hint = f"trtllm-hpc bench {call_name(RunPaths(path.parent.parent))}"
    raise RunNotFound(f"{path} is not a measurement of this version of trtllm-hpc.", hint=hint)
