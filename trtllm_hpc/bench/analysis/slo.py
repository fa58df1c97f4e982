"""Limits on figures: ``ttft.p99<500ms,tpot.p99<50ms``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from trtllm_hpc.bench.analysis.intervals import STATISTICS, value_of
from trtllm_hpc.bench.metrics import METRICS, Metric, PerRequest, distribution
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.results import Figure
from trtllm_hpc.config.diagnostics import nearest
from trtllm_hpc.errors import ExitCode, TrtllmHpcError

DEFAULT_STATISTIC = "p99"

_METRICS: dict[str, Metric] = {
    metric.slo_name: metric
    for metric in sorted(METRICS, key=lambda metric: not isinstance(metric, PerRequest))
    if metric.slo_name is not None
}
"""Metrics that an SLO can limit, latencies first."""

_UNITS: dict[str, dict[str, float]] = {
    "ms": {"ms": 1.0, "s": 1e3, "us": 1e-3},
    "share": {"%": 0.01, "": 1.0},
    "requests/s": {"/s": 1.0, "": 1.0},
    "tokens/s": {"/s": 1.0, "": 1.0},
}
"""Units of limits with their factors, by the unit of the metric."""

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LIMIT = re.compile(r"([^\s.<>=:]+)(?:\.([^\s<>=:]*))?\s*(<=|>=|<|>|:)\s*([0-9.eE+-]+)\s*([^\s0-9]*)")
_EXAMPLE = "--slo 'ttft.p99<500ms,tpot.p99<50ms'"


class BadSlo(TrtllmHpcError, exit_code=ExitCode.USAGE):
    """A limit that cannot be parsed."""


@dataclass(frozen=True)
class SloLimit:
    """One limit, in the unit of its metric."""

    name: str
    """Short name of the metric, e.g. ``ttft``."""
    metric: Metric
    statistic: str | None
    """Statistic, e.g. ``p99``; ``None`` if the metric is a single number."""
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.subject}{self.sign}{_with_unit(self.bound, self.metric.unit)}"

    @property
    def subject(self) -> str:
        """Metric and statistic, e.g. ``ttft.p99``."""
        return self.name if self.statistic is None else f"{self.name}.{self.statistic}"

    def holds_for(self, value: float) -> bool:
        """Return whether a value of the metric meets the limit."""
        return _COMPARE[self.sign](value, self.bound)

    def violation(self, *passes: Mapping[str, Figure]) -> str | None:
        """Return a sentence if any pass breaks the limit or lacks its metric, else ``None``.

        For several passes the sentence has their mean, as in tables, and their range.
        """
        figures = [figure for metrics in passes if (figure := metrics.get(self.metric.key)) is not None]
        if len(figures) < len(passes):
            return f"{self.subject} has no value. {self.metric.meaning}"
        values = [value_of(figure, self.statistic) for figure in figures]
        if all(map(self.holds_for, values)):
            return None
        mean, low, high = (
            _with_unit(value, self.metric.unit, digits=4)
            for value in (math.fsum(values) / len(values), min(values), max(values))
        )
        bound = _with_unit(self.bound, self.metric.unit)
        over_passes = f" on average ({low} to {high})" if len(values) > 1 else ""
        return f"{self.subject} is {mean}{over_passes}, not {self.sign} {bound}."


@dataclass(frozen=True)
class Slo:
    """Limits that must all hold."""

    limits: tuple[SloLimit, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.limits))

    @property
    def needing_streaming(self) -> list[str]:
        """Names of limits that need streamed answers."""
        return list(dict.fromkeys(limit.name for limit in self.limits if limit.metric.needs_streaming))

    @cached_property
    def _per_request(self) -> list[tuple[SloLimit, PerRequest]]:
        return [(limit, limit.metric) for limit in self.limits if isinstance(limit.metric, PerRequest)]

    def violations(self, *passes: Mapping[str, Figure]) -> list[str]:
        """Return a sentence for each limit that any pass breaks."""
        return [sentence for limit in self.limits if (sentence := limit.violation(*passes)) is not None]

    def met_by(self, record: RequestRecord) -> bool:
        """Return whether an answered request meets every limit on single requests.

        The limit's statistic is taken over the request's values (``itl``). A request without a value, such as
        the time between tokens of an answer of one token, cannot break the limit.
        """
        for limit, metric in self._per_request:
            values = metric.values(record)
            # A single value needs no numpy, which would be slower.
            if len(values) > 1:
                values = [value_of(distribution(values), limit.statistic)]
            if values and not limit.holds_for(values[0]):
                return False
        return True

    def judge(self, records: Iterable[RequestRecord]) -> Callable[[RequestRecord], bool] | None:
        """Return :meth:`met_by`; ``None`` if no answered record has a value for some limit."""
        answered = [record for record in records if record.ok]
        known = all(any(map(metric.values, answered)) for _, metric in self._per_request)
        return self.met_by if known else None


def parse_slo(text: str) -> Slo:
    """Parse limits, separated by commas: ``NAME[.STATISTIC]<VALUE[UNIT]``.

    The default statistic is ``p99``. A colon means ``<`` or ``>``, whichever is right for the metric
    (``ttft:500ms``, as in ``--goodput`` of vLLM and GenAI-Perf), and needs no quotes in a shell. Raises
    BadSlo with the wrong limit, the reason and the choices.
    """
    limits = [limit for part in text.split(",") if (limit := part.strip())]
    if not limits:
        raise BadSlo("The SLO is empty.", hint=_EXAMPLE)
    return Slo(tuple(map(_parse_limit, limits)))


def _parse_limit(text: str) -> SloLimit:
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise BadSlo(
            f"Cannot parse the limit {text!r} of the SLO. The form is NAME[.STATISTIC]<VALUE UNIT; in a "
            "shell, put the SLO in quotes, or write ':' for '<'.",
            hint=_EXAMPLE,
        )
    name, statistic, sign, number, unit = match.groups()
    metric = _METRICS.get(name) or next((known for known in _METRICS.values() if known.key == name), None)
    if metric is None:
        raise _bad(text, f"no metric is called {name!r}.", name, _METRICS)
    expected = "<" if metric.better == "lower" else ">"
    if sign == ":":
        sign = expected
    elif not sign.startswith(expected):
        raise _bad(text, f"for {name}, {metric.better} is better; write {expected}.")
    units = _UNITS[metric.unit]
    try:
        bound = float(number)
    except ValueError:
        bound = math.nan
    if not (math.isfinite(bound) and bound >= 0):
        raise _bad(text, f"{number!r} is not a number of at least 0.")
    if unit not in units:
        wrong = f"{unit!r} is not a unit of {name}." if unit else f"the value of {name} needs a unit."
        raise _bad(text, wrong, unit, [known or "none" for known in units])
    if not isinstance(metric, PerRequest):
        if statistic is not None:
            raise _bad(text, f"{name} is a single number; remove .{statistic}.")
    elif statistic is None:
        statistic = DEFAULT_STATISTIC
    elif statistic not in STATISTICS:
        raise _bad(text, f"no statistic is called {statistic!r}.", statistic, STATISTICS)
    return SloLimit(metric.slo_name or name, metric, statistic, sign, bound * units[unit])


def _bad(limit: str, wrong: str, given: str = "", choices: Iterable[str] = ()) -> BadSlo:
    message = f"In {limit!r} of the SLO: {wrong}"
    if choices := list(choices):
        meant = nearest(given, choices)
        message += f" Did you mean {meant!r}?" if meant else ""
        message += f"\n    choices: {', '.join(choices)}"
    return BadSlo(message)


def _with_unit(value: float, unit: str, digits: int = 6) -> str:
    scaled, suffix = (value * 100, "%") if unit == "share" else (value, "ms" if unit == "ms" else "/s")
    return f"{scaled:.0f}{suffix}" if abs(scaled) >= 10**digits else f"{scaled:.{digits}g}{suffix}"
