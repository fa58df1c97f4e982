"""Compare two measurements: what changed, and whether by more than chance."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any, ClassVar

from trtllm_hpc.bench.analysis.intervals import value_of, welch_test
from trtllm_hpc.bench.metrics import METRICS, PerRequest
from trtllm_hpc.bench.results import LevelResult, MeasurementSummary
from trtllm_hpc.errors import ExitCode, InvalidMeasurement, TrtllmHpcError

STATISTICS = ("mean", "p50", "p99")
"""The statistics of a distribution that are compared; more rows would mean more false alarms."""
_FROM_SEND = {"ttft_from_send_ms", "latency_from_send_ms"}
"""Not compared: the same metrics from the schedule include what these show."""
TOLERANCE = 0.05
"""How far a figure may differ unless the user says otherwise, as a share of the first."""
SIGNIFICANCE = 0.05
"""A difference is significant if its adjusted p-value is below this."""
_MAX_ROWS_NAMED = 5
_WORKLOAD = ("workload.*", "max_tokens", "exact_output", "arrival", "burstiness", "extra_body.*", "headers.*")
"""Settings that decide what is requested, and when."""
_REQUESTS = ("workload.*", "max_tokens")
"""Those of them that do not matter if the files of requests are the same to the byte."""
_IGNORED = (
    # where the tokenizer lies
    "workload.tokenizer",
    # how certain figures are, and not what they are
    "repeats",
    "processes",
    "max_error_share",
    "max_failures_in_a_row",
    "max_late_share",
    "min_requests",
    "min_window_seconds",
    "find_max",
    # levels of load are compared one by one
    "rate_per_second",
    "rates_per_second*",
    "concurrency",
    "concurrencies*",
)
_ENVIRONMENT = (
    *("server.cluster", "server.container", "server.image", "server.world_size"),
    *("server.ranks.*.gpu_models*", "server.ranks.*.mpi_library"),
    *("engine.backend", "engine.model", "engine.tensorrt_llm"),
    *("engine.key", "engine.layout", "engine.versions.*"),
    *("client.same_host_as_server", "client.cpu", "client.cpus", "client.python", "client.packages.*"),
)
"""Parts of the provenance that may explain a difference; the rest, such as job ids, always differs."""
_MAX_LENGTH = 60


class Worse(TrtllmHpcError, exit_code=ExitCode.MEASUREMENT):
    """The second measurement is worse than the first, beyond the tolerance."""


class DifferentWorkloads(TrtllmHpcError, exit_code=ExitCode.USAGE):
    """The two measurements had different workloads, so neither can be called worse."""


@dataclass(frozen=True)
class Side:
    """One of the two measurements."""

    name: str
    """As the user named it."""
    measurement: MeasurementSummary

    @property
    def levels(self) -> dict[str, LevelResult]:
        """The levels by their labels."""
        return {result.level.label: result for result in self.measurement.levels}


@dataclass(frozen=True)
class ComparedFigure:
    """One figure at one level of load, in both measurements."""

    level: str
    """The level of load, e.g. ``8/s``."""
    key: str
    """The metric's, e.g. ``ttft_ms``."""
    label: str
    """The metric's name in tables."""
    unit: str
    statistic: str | None
    """``mean``, ``p50``, ``p99``...; ``None`` for a single number."""
    a: float
    b: float
    better: bool | None
    """Whether b is better than a; ``None`` if they are equal."""
    beyond: bool
    """Whether the difference exceeds the tolerance."""
    low: float | None = None
    """The 95 % confidence interval of b - a begins here and ends at ``high``; ``None`` if the spread is
    unknown."""
    high: float | None = None
    p_value: float | None = None
    """Adjusted for the number of rows."""

    PRINTED: ClassVar[tuple[str, ...]] = ("change", "significant", "regressed")
    """Properties that JSON has too."""

    @property
    def change(self) -> float | None:
        """The relative change from a to b; ``None`` if a is 0."""
        return self.b / self.a - 1 if self.a else None

    @property
    def significant(self) -> bool | None:
        """Whether the difference is more than chance; ``None`` if the spread is unknown."""
        return None if self.p_value is None else self.p_value < SIGNIFICANCE

    @property
    def regressed(self) -> bool:
        """Whether b is worse beyond the tolerance, and significantly so."""
        return self.beyond and self.better is False and self.significant is True

    @property
    def undecided(self) -> bool:
        """Whether the difference exceeds the tolerance but may be chance, because the spread is unknown."""
        return self.beyond and self.significant is None

    def __str__(self) -> str:
        name = self.label if self.statistic is None else f"{self.label} ({self.statistic})"
        change = "" if self.change is None else f", {self.change:+.1%}"
        return f"{name} at {self.level}: {self.a:.4g} to {self.b:.4g} {self.unit}{change}"


@dataclass(frozen=True)
class Comparison:
    """Two measurements side by side."""

    a: str
    """The first measurement, as the user named it."""
    b: str
    """The second."""
    rows: list[ComparedFigure]
    """Every figure at every level of load that both have."""
    workload: list[str]
    """Differences between the workloads, a line each."""
    judged: bool
    """Whether b can be called better or worse: the workloads are the same, or the user allows others."""
    settings: list[str]
    """Other settings that differ and may influence the figures."""
    environment: list[str]
    """What else differed, such as the engine: often what the comparison is about."""
    notes: list[str]
    """What a reader of the rows must know."""
    invalid: list[str]
    """Why figures of either measurement may not be used."""

    PRINTED: ClassVar[tuple[str, ...]] = ("worse",)
    """Properties that JSON has too."""

    @property
    def regressed(self) -> list[ComparedFigure]:
        """The rows that are worse, largest change first."""
        return sorted(
            (row for row in self.rows if row.regressed),
            key=lambda row: float("inf") if row.change is None else abs(row.change),
            reverse=True,
        )

    @property
    def worse(self) -> bool | None:
        """Whether b is worse than a in any figure; ``None`` if it is not judged."""
        return bool(self.regressed) if self.judged else None


def compare(
    a: Side, b: Side, tolerance: float = TOLERANCE, *, allow_different_workload: bool = False
) -> Comparison:
    """Compare every figure at the levels of load that both measurements have.

    ``tolerance`` is the share of the first figure by which the second may differ.

    Each pass is one observation, and they are compared with Welch's t-test. The spread of a single pass is
    unknown: its figures are shown, but are never a regression. P-values are adjusted over all rows, so that
    on average at most 5 % of the differences called significant are false (Benjamini and Hochberg 1995).
    Raises InvalidMeasurement if they have no level of load in common.
    """
    levels_a, levels_b = a.levels, b.levels
    common = [label for label in levels_a if label in levels_b]
    if not common:
        raise InvalidMeasurement(
            f"{a.name} and {b.name} have no level of load in common: {', '.join(levels_a) or 'none'} and "
            f"{', '.join(levels_b) or 'none'}.",
            hint=f"trtllm-hpc bench {b.name.partition(':')[0]}, with the rates or concurrencies of {a.name}",
        )
    of_both = a.measurement, b.measurement
    workload = workload_diff(*of_both)
    rows = [row for label in common for row in _rows(levels_a[label], levels_b[label], tolerance)]
    # Rows with equal figures test nothing.
    tested = {at: it.p_value for at, it in enumerate(rows) if None not in (it.p_value, it.better)}
    if tested:
        from scipy import stats

        adjusted = stats.false_discovery_control(list(tested.values()))
        for place, p_value in zip(tested, adjusted, strict=True):
            rows[place] = replace(rows[place], p_value=float(p_value))
    return Comparison(
        a=a.name,
        b=b.name,
        rows=rows,
        workload=workload,
        judged=allow_different_workload or not workload,
        settings=_diff(*map(_settings, of_both), only=("*",), ignored=(*_IGNORED, *_WORKLOAD)),
        environment=_diff(*(_flat(side.provenance) for side in of_both), only=_ENVIRONMENT),
        notes=list(_notes(a, b, common, rows, tolerance)),
        invalid=[
            f"The figures of {side.name} may not be used: {side.measurement.verdict.reasons}"
            for side in (a, b)
            if not side.measurement.verdict.valid
        ],
    )


def raise_if_worse(comparison: Comparison, tolerance: float = TOLERANCE) -> None:
    """Raise if the second measurement is worse than the first, or if it cannot be judged.

    Raises InvalidMeasurement if the figures of either may not be used; DifferentWorkloads if they had
    different workloads, which was not allowed; Worse with the figures that are worse, and by how much.
    """
    if comparison.invalid:
        raise InvalidMeasurement(" ".join(comparison.invalid))
    if not comparison.judged:
        raise DifferentWorkloads(
            f"{comparison.a} and {comparison.b} had different workloads, so neither can be called worse: "
            f"{'; '.join(comparison.workload)}.",
            hint="measure both with the same workload, or add --allow-different-workload",
        )
    worse = comparison.regressed
    if worse:
        more = f"; and {len(worse) - _MAX_ROWS_NAMED} more" if len(worse) > _MAX_ROWS_NAMED else ""
        raise Worse(
            f"{comparison.b} is worse than {comparison.a} by more than {tolerance * 100:.4g} % in "
            f"{len(worse)} of {len(comparison.rows)} figures: "
            f"{'; '.join(map(str, worse[:_MAX_ROWS_NAMED]))}{more}."
        )


def _rows(a: LevelResult, b: LevelResult, tolerance: float) -> Iterator[ComparedFigure]:
    """Yield every figure of a level that all passes of both measurements have."""
    passes = [*a.passes, *b.passes]
    for metric in METRICS:
        is_of_all = all(metric.key in one.metrics for one in passes)
        if metric.better is None or metric.key in _FROM_SEND or not is_of_all:
            continue
        for statistic in STATISTICS if isinstance(metric, PerRequest) else (None,):
            of_a, of_b = (
                [value_of(one.metrics[metric.key], statistic) for one in result.passes] for result in (a, b)
            )
            before, after = fmean(of_a), fmean(of_b)
            row = ComparedFigure(
                level=a.level.label,
                key=metric.key,
                label=metric.label,
                unit=metric.unit,
                statistic=statistic,
                a=before,
                b=after,
                better=None if before == after else (after < before) == (metric.better == "lower"),
                beyond=abs(after - before) > tolerance * abs(before),
            )
            found = welch_test(of_a, of_b)
            yield row if found is None else replace(row, **found._asdict())


def _notes(
    a: Side, b: Side, common: Sequence[str], rows: Sequence[ComparedFigure], tolerance: float
) -> Iterator[str]:
    first, second = a.measurement.search, b.measurement.search
    if first is not None and second is not None:
        rates = [
            "none" if it.max_rate_per_s is None else f"{it.max_rate_per_s:g}/s" for it in (first, second)
        ]
        yield f"Highest rate within {first.slo}: {rates[0]}; within {second.slo}: {rates[1]}."
    for side in (a, b):
        single = [label for label in common if len(side.levels[label].passes) == 1]
        if single:
            where = "" if len(single) == len(common) else f" at {', '.join(single)}"
            yield f"{side.name}{where} has one pass: the spread of its figures is unknown."
        unpaired = [label for label in side.levels if label not in common]
        if unpaired:
            yield f"Only {side.name} has the levels {', '.join(unpaired)}: not compared."
    undecided = [row for row in rows if row.undecided]
    if undecided:
        worse = sum(row.better is False for row in undecided)
        yield (
            f"{len(undecided)} of {len(rows)} figures differ by more than {tolerance * 100:.4g} %, "
            f"{worse} of them for the worse, but their spread is unknown: they decide nothing. "
            "Measure both with --repeats 5."
        )


# Other differences than those of figures --------------------------------------------------------------


def workload_diff(a: MeasurementSummary, b: MeasurementSummary) -> list[str]:
    """Return the differences between the workloads, a line each; none if the figures can be compared."""
    digests = [side.provenance.get("workload", {}).get("sha256") for side in (a, b)]
    same_requests = digests[0] is not None and digests[0] == digests[1]
    ignored = (*_IGNORED, *_REQUESTS) if same_requests else _IGNORED
    lines = _diff(_settings(a), _settings(b), only=_WORKLOAD, ignored=ignored)
    # Equal settings give equal requests, if they fix their number.
    has_fixed_requests = a.settings.get("duration_seconds") is None and not a.settings.get("find_max")
    if a.settings == b.settings and has_fixed_requests and None not in digests and not same_requests:
        lines.append("the requests differ, although the settings are the same")
    return lines


def _settings(measurement: MeasurementSummary) -> dict[str, str]:
    served = {
        "model": measurement.model,
        "protocol": measurement.protocol,
        "streaming": measurement.streaming,
        # Counts from texts and the model's own may differ for the same answers.
        "output_tokens_counted_by": measurement.tokens.get("output_by"),
    }
    return _flat({**measurement.settings, **served})


def _diff(
    a: dict[str, str], b: dict[str, str], *, only: tuple[str, ...], ignored: tuple[str, ...] = ()
) -> list[str]:
    """Return a line for each name that matches ``only`` and whose values differ."""

    def matches(name: str, patterns: tuple[str, ...]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    lines = []
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name) and matches(name, only) and not matches(name, ignored):
            values = (side.get(name, "none") for side in (a, b))
            short = (it if len(it) <= _MAX_LENGTH else f"{it[: _MAX_LENGTH - 3]}..." for it in values)
            lines.append(f"{name}: {' against '.join(short)}")
    return lines


def _flat(plain: Any, name: str = "") -> dict[str, str]:
    """Return the values in mappings and in lists of mappings as JSON, by their dotted names."""
    if isinstance(plain, dict):
        items = [(str(key), value) for key, value in plain.items()]
    elif isinstance(plain, list) and any(isinstance(value, dict | list) for value in plain):
        items = [(str(place), value) for place, value in enumerate(plain)]
    else:
        return {name: json.dumps(plain, ensure_ascii=False)}
    found: dict[str, str] = {}
    for key, value in items:
        found |= _flat(value, f"{name}.{key}" if name else key)
    return found
