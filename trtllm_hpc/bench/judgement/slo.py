"""Limits on figures: ``ttft.p99<500ms,tpot.p99<50ms``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trtllm_hpc.bench.metrics import BY_KEY, Metric, PerRequest, distribution
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.statistics import STATISTICS, value_of
from trtllm_hpc.bench.summary import Figure
from trtllm_hpc.config.diagnostics import nearest
from trtllm_hpc.errors import ExitCode, TrtllmHpcError

DEFAULT_STATISTIC = "p99"

_NAMES = {
    "ttft": "ttft_ms",
    "ttft_from_send": "ttft_from_send_ms",
    "tpot": "tpot_ms",
    "itl": "itl_ms",
    "latency": "latency_ms",
    "latency_from_send": "latency_from_send_ms",
    "errors": "error_share",
    "requests": "finished_rate_per_s",
    "tokens": "output_tokens_per_s",
    "total_tokens": "total_tokens_per_s",
}
"""What a limit may be about, by its short name; the key of the metric is understood too."""

_UNITS: dict[str, dict[str, float]] = {
    "ms": {"ms": 1.0, "s": 1e3, "us": 1e-3},
    "share": {"%": 0.01, "": 1.0},
    "requests/s": {"/s": 1.0, "": 1.0},
    "tokens/s": {"/s": 1.0, "": 1.0},
}
"""Units that a person may write for the unit of a metric, and how much of it each is."""

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LIMIT = re.compile(r"([^\s.<>=:]+)(?:\.([^\s<>=:]*))?\s*(<=|>=|<|>|:)\s*([0-9.eE+-]+)\s*([^\s0-9]*)")
_EXAMPLE = "--slo 'ttft.p99<500ms,tpot.p99<50ms'"


class BadSlo(TrtllmHpcError):
    """A limit that cannot be read."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Limit:
    """One limit, in the unit of its metric."""

    name: str
    """As it is spelled in short, e.g. ``ttft``."""
    metric: Metric
    statistic: str | None
    """``None`` where the metric is a single number."""
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self._of}{self.sign}{_with_unit(self.bound, self.metric.unit)}"

    @property
    def _of(self) -> str:
        return self.name if self.statistic is None else f"{self.name}.{self.statistic}"

    def holds_for(self, value: float) -> bool:
        """Whether a value of the metric keeps the limit."""
        return _COMPARE[self.sign](value, self.bound)

    def broken_by(self, figures: Mapping[str, Figure]) -> str | None:
        """How figures break the limit, in a sentence; ``None`` if they keep it."""
        figure = figures.get(self.metric.key)
        if figure is None:
            return f"{self._of} has no value. {self.metric.meaning}"
        value = value_of(figure, self.statistic)
        if self.holds_for(value):
            return None
        bound = _with_unit(self.bound, self.metric.unit)
        return f"{self._of} is {_with_unit(value, self.metric.unit)}, not {self.sign} {bound}."


@dataclass(frozen=True)
class Slo:
    """Limits that must all hold."""

    limits: tuple[Limit, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.limits))

    @property
    def streamed(self) -> list[str]:
        """Names of the limits on what only a streamed answer has."""
        return list(dict.fromkeys(limit.name for limit in self.limits if limit.metric.streamed))

    @cached_property
    def _per_request(self) -> list[tuple[Limit, PerRequest]]:
        return [(limit, limit.metric) for limit in self.limits if isinstance(limit.metric, PerRequest)]

    def broken_by(self, figures: Mapping[str, Figure]) -> list[str]:
        """How the figures of a pass break the limits, a sentence each; none if all hold."""
        return [sentence for limit in self.limits if (sentence := limit.broken_by(figures)) is not None]

    def met_by(self, record: RequestRecord) -> bool:
        """Whether one answered request keeps every limit on times.

        Of several values in one request (``itl``) the limit's statistic is
        taken over these. A request that has none, such as the time between
        tokens of an answer of one token, cannot break the limit.
        """
        return all(_kept(limit, metric.values(record)) for limit, metric in self._per_request)

    def judges(self, records: Sequence[RequestRecord]) -> bool:
        """Whether the records hold values for every limit on times."""
        return all(any(metric.values(record) for record in records) for _, metric in self._per_request)


def _kept(limit: Limit, values: Sequence[float]) -> bool:
    if not values:
        return True
    value = values[0] if len(values) == 1 else getattr(distribution(values), limit.statistic or "mean")
    return limit.holds_for(value)


def parse_slo(text: str) -> Slo:
    """Read limits, separated by commas: ``NAME[.STATISTIC]<VALUE[UNIT]``.

    The statistic is ``p99`` unless it is named. ``:`` stands for the sign that
    makes sense (``ttft:500ms``, as ``--goodput`` of vLLM and GenAI-Perf has
    it) and needs no quotes in a shell.

    Raises:
        BadSlo: which limit cannot be read, why, and what would be understood.
    """
    words = [word.strip() for word in text.split(",")]
    if not any(words):
        raise BadSlo("The SLO is empty.", hint=_EXAMPLE)
    return Slo(tuple(_limit(word) for word in words if word))


def _limit(word: str) -> Limit:
    match = _LIMIT.fullmatch(word)
    if match is None:
        raise BadSlo(
            f"Cannot read the limit {word!r} of the SLO: it is NAME[.STATISTIC]<VALUE UNIT. In a shell, put "
            "the SLO in quotes, or write ':' for '<'.",
            hint=_EXAMPLE,
        )
    name, statistic, sign, number, unit = match.groups()
    metric = _metric(name, word)
    sign = _sign(sign, name, metric, word)
    bound = _number(number, word) * _factor(unit, name, metric, word)
    short = next((short for short, key in _NAMES.items() if key == metric.key), name)
    return Limit(short, metric, _statistic(statistic, name, metric, word), sign, bound)


def _metric(name: str, word: str) -> Metric:
    key = _NAMES.get(name, name)
    if key in _NAMES.values():
        return BY_KEY[key]
    raise _refused(word, f"no figure is called {name!r}", name, _NAMES)


def _statistic(statistic: str | None, name: str, metric: Metric, word: str) -> str | None:
    if not isinstance(metric, PerRequest):
        if statistic is not None:
            raise BadSlo(f"In {word!r} of the SLO: {name} is a single number; leave .{statistic} out.")
        return None
    if statistic is None:
        return DEFAULT_STATISTIC
    if statistic not in STATISTICS:
        raise _refused(word, f"no statistic is called {statistic!r}", statistic, STATISTICS)
    return statistic


def _sign(sign: str, name: str, metric: Metric, word: str) -> str:
    wanted = "<" if metric.better == "lower" else ">"
    if sign == ":":
        return wanted
    if not sign.startswith(wanted):
        raise BadSlo(f"In {word!r} of the SLO: of {name}, {metric.better} is better; write {wanted}.")
    return sign


def _number(number: str, word: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise BadSlo(f"In {word!r} of the SLO: {number!r} is no number of 0 or more.")
    return value


def _factor(unit: str, name: str, metric: Metric, word: str) -> float:
    units = _UNITS[metric.unit]
    if unit in units:
        return units[unit]
    known = [known or "none" for known in units]
    wrong = f"{unit!r} is no unit of {name}" if unit else f"the value of {name} needs a unit"
    raise _refused(word, wrong, unit, known)


def _refused(word: str, wrong: str, given: str, choices: Sequence[str] | Mapping[str, str]) -> BadSlo:
    meant = nearest(given, choices)
    question = f" Did you mean {meant!r}?" if meant else ""
    return BadSlo(f"In {word!r} of the SLO: {wrong}.{question}\n    choices: {', '.join(choices)}")


def _with_unit(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value * 100:.6g}%"
    return f"{value:.6g}ms" if unit == "ms" else f"{value:.6g}/s"
