"""One page of the server's metrics, and what a figure is made of on it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Source:
    """Samples of one name, those with one label's value if it is given; their sum counts."""

    name: str
    label: str | None = None
    value: str | None = None


class Page:
    """One metrics page, read.

    Raises:
        ValueError: it is not in Prometheus' text format.
    """

    def __init__(self, text: str) -> None:
        from prometheus_client.parser import text_string_to_metric_families

        self._samples: dict[tuple[str | None, str], list[tuple[dict[str, str], float]]] = defaultdict(list)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if math.isfinite(sample.value):
                    # The library writes counters as OpenMetrics would; Triton's have no such ending.
                    name = sample.name.removesuffix("_total")
                    model = sample.labels.get("model")
                    self._samples[model, name].append((sample.labels, float(sample.value)))

    def models(self, *prefixes: str) -> set[str]:
        """Models that have a metric whose name begins with one of these."""
        return {model for model, name in self._samples if model is not None and name.startswith(prefixes)}

    def total(self, sources: Iterable[Source], model: str | None) -> float | None:
        """Sum over all sources; ``None`` where one of them is not there."""
        found = [self._one(source, model) for source in sources]
        return sum(value for value in found if value is not None) if None not in found else None

    def _one(self, source: Source, model: str | None) -> float | None:
        values = [
            value
            for labels, value in self._samples.get((model, source.name), ())
            if source.label is None or labels.get(source.label) == source.value
        ]
        return sum(values) if values else None


@dataclass(frozen=True)
class Series:
    """One figure of the server over time.

    ``gauge``: ``over`` (divided by ``under``) as the page has it. ``rate``: growth of ``over`` in
    each second between two pages. ``mean``: growth of ``over`` for each one that ``under`` grew.
    """

    key: str
    label: str
    unit: str
    """``requests``, ``blocks``, ``tokens``, ``tokens/s``, ``1/s``, ``ms``, ``bytes``, ``share`` (0 to 1),
    ``GPUs`` or ``W``."""
    of: Literal["engine", "model", "host"]
    """Whether it is told of each engine, of each of Triton's models, or once."""
    over: tuple[Source, ...]
    under: tuple[Source, ...] = ()
    kind: Literal["gauge", "rate", "mean"] = "gauge"
    scale: float = 1.0
    model: str | None = None
    """Whose it is, where one model's was asked for."""

    def value(self, page: Page, before: Page | None, gap_s: float, model: str | None) -> float | None:
        """Its value at ``page``, ``gap_s`` seconds after ``before``; ``None`` where it has none."""
        over, under = page.total(self.over, model), page.total(self.under, model)
        if self.kind != "gauge":
            if before is None:
                return None
            over = _growth(over, before.total(self.over, model))
            under = _growth(under, before.total(self.under, model))
        if over is None or under is None:
            return None
        if self.kind == "rate":
            return over * self.scale / gap_s if gap_s > 0 else None
        if not self.under:
            return over * self.scale
        return over * self.scale / under if under > 0 else None

    @property
    def counted(self) -> Series:
        """What it is as of one page alone: a rate's count, and anything else as it is."""
        if self.kind != "rate":
            return self
        unit = "" if self.unit == "1/s" else self.unit.removesuffix("/s")
        return replace(self, key=self.key.removesuffix("_per_s"), unit=unit)

    def since_start(self, page: Page, model: str | None) -> float | None:
        """As of one page alone: a rate's count, and a mean over all, since the server started."""
        over, under = page.total(self.over, model), page.total(self.under, model)
        if over is None or under is None or (self.under and under <= 0):
            return None
        if self.kind == "rate":
            return over
        return over * self.scale / (under if self.under else 1.0)


def _growth(now: float | None, before: float | None) -> float | None:
    """How much it grew; ``None`` where it fell: the server, or the model, has started anew."""
    return None if now is None or before is None or now < before else now - before
