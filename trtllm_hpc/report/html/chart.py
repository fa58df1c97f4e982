"""Charts as Vega-Lite descriptions: their rows, axes and colours; drawn in the page or as a PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

from trtllm_hpc.errors import TrtllmHpcError

Row: TypeAlias = dict[str, Any]
Spec: TypeAlias = dict[str, Any]
"""A part of a Vega-Lite description."""

_DECIMALS = 4
"""Decimals of the numbers in the page: 0.1 ms of seconds. It keeps the page small."""


@dataclass(frozen=True)
class Chart:
    """A chart that can be drawn."""

    key: str
    """Id of the element in the page, and name of the PNG."""
    title: str
    description: str
    """What the chart shows, for readers who cannot see it."""
    layers: Sequence[Spec]
    """Vega-Lite without data, from back to front; each ``data`` names one of ``datasets``."""
    datasets: Mapping[str, Sequence[Row]]
    height: int

    @property
    def spec(self) -> Spec:
        """The chart in Vega-Lite, as wide as its container."""
        fit = {"type": "fit-x", "contains": "padding"}
        return {"width": "container", "height": self.height, "autosize": fit, "layer": list(self.layers)}

    def for_page(self) -> Row:
        """Return the chart in the form that the page's script reads."""
        data = {name: _columns(rows) for name, rows in self.datasets.items()}
        return {"key": self.key, "spec": {**self.spec, "description": self.description}, "data": data}


@dataclass(frozen=True)
class NoChart:
    """Stands in the place of a chart, with the reason why there is none."""

    title: str
    reason: str


@dataclass(frozen=True)
class Section:
    """A section of the page: charts that answer one question."""

    key: str
    title: str
    charts: Sequence[Chart | NoChart]
    wide: bool = False
    """Whether charts stand one below the other, instead of side by side."""


def drawing() -> ModuleType:
    """Import and return what draws charts. Raises TrtllmHpcError if it is not installed."""
    try:
        import vl_convert
    except ImportError as error:
        raise TrtllmHpcError(
            f"The report needs the Python package {error.name!r}, which is not installed.",
            hint="pip install 'trtllm-hpc[report]'",
        ) from error
    return vl_convert


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return rows as columns with rounded numbers: half the size in JSON."""
    return {
        name: [round(row[name], _DECIMALS) if isinstance(row[name], float) else row[name] for row in rows]
        for name in (rows[0] if rows else ())
    }


# Parts of a description -----------------------------------------------------------------


def number(name: str, **others: Any) -> Spec:
    """Return the encoding of a field with numbers."""
    return {"field": name, "type": "quantitative", **others}


def word(name: str, **others: Any) -> Spec:
    """Return the encoding of a field with names."""
    return {"field": name, "type": "nominal", **others}


def layer(mark: Spec, where: str | None = None, **encoding: Any) -> Spec:
    """Return marks for the rows that fulfil a condition, for all without one."""
    transform = {} if where is None else {"transform": [{"filter": where}]}
    return {**transform, "mark": mark, "encoding": encoding}


def layers_over(dataset: str, layers: Sequence[Spec], **encoding: Any) -> Spec:
    """Return layers over one of the datasets, which share an encoding."""
    return {"data": {"name": dataset}, "encoding": encoding, "layer": list(layers)}


_DECADE = 10.0
"""Ratio of largest to smallest value above which an axis is logarithmic."""


def axis(title: str, values: Sequence[float], *, zero: bool = True) -> Spec:
    """Return title, scale and marks of an axis: logarithmic if its values span more than a decade."""
    low, high = min(values), max(values)
    if low <= 0 or high / low <= _DECADE:
        return {"title": title, "scale": {"zero": zero, "nice": True}}
    marks = round_marks(low, high)
    return {
        "title": title,
        "scale": {"type": "log", "domain": [marks[0], marks[-1]], "nice": False},
        # Without tickCount, Vega drops some of the marks.
        "axis": {"values": marks, "tickCount": len(marks), "format": ",~g"},
    }


def round_marks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5, 10...: from the last at or below ``low`` to the first at or above ``high``.

    For more than three decades: powers of ten only.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if high / low <= _DECADE**3 else (1,)
    marks = [digit * _DECADE**decade for decade in decades for digit in digits]
    first = max(place for place, mark in enumerate(marks) if mark <= low * (1 + 1e-9))
    last = min(place for place, mark in enumerate(marks) if mark >= high * (1 - 1e-9))
    return marks[first : last + 1]


# Theme ----------------------------------------------------------------------------------

_FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
# Hues of Okabe and Ito (2008), distinguishable with any colour vision, in shades that are visible on a
# white and on a dark page.
CATEGORIES = ["#2b8ac9", "#d98c00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"]
ASIDE = "#98a3b0"
"""Colour of requests that are not measured."""
FAILED = "#d55e00"
BAND = "band"
"""Style of the background of warm-up and drain."""
QUIET = "quiet"
"""Style of reference lines."""


def _config(*, ink: str, soft: str, line: str, extent: tuple[float, float]) -> Spec:
    return {
        "background": "transparent",
        "font": _FONT,
        "axis": {
            **{"labelColor": soft, "titleColor": soft, "gridColor": line, "domainColor": line},
            **{"tickColor": line, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"},
            "labelOverlap": "greedy",
        },
        "axisX": {"grid": False, "tickCount": 6},
        # All of one width, so that the time axes of charts line up.
        "axisY": {"ticks": False, "domain": False, "tickCount": 5, "minExtent": 40},
        "legend": {
            **{"orient": "top", "title": None, "columns": 3, "padding": 0, "offset": 8},
            **{"labelColor": ink, "labelFontSize": 11, "symbolStrokeWidth": 2},
        },
        "title": {"color": ink, "anchor": "start", "fontSize": 14, "offset": 12},
        "view": {"stroke": None},
        "mark": {"color": CATEGORIES[0]},
        "rule": {"color": CATEGORIES[0]},
        "line": {"strokeWidth": 2},
        "point": {"size": 40, "filled": True},
        "text": {"color": soft, "fontSize": 11},
        "range": {"category": CATEGORIES, "ordinal": {"scheme": "viridis", "extent": list(extent)}},
        "style": {
            BAND: {"fill": "#8592a3", "fillOpacity": 0.18},
            QUIET: {"stroke": soft, "strokeDash": [4, 4], "strokeWidth": 1, "color": soft},
        },
    }


LIGHT = _config(ink="#1c2430", soft="#5b6675", line="#dfe4ea", extent=(0.0, 0.8))
"""The Vega configuration for a light page, and for PNGs."""
DARK = _config(ink="#e8ecf1", soft="#a3aebb", line="#333d49", extent=(0.3, 1.0))
