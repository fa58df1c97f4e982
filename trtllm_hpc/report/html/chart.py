"""Charts as Vega-Lite descriptions: rows, axes and colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]
Spec: TypeAlias = dict[str, Any]
"""A part of a Vega-Lite description."""

_DECIMALS = 4
"""Decimals of numbers in the page (0.1 ms for seconds), which keep the page small."""


@dataclass(frozen=True)
class Chart:
    """A chart with data."""

    key: str
    """ID of the element in the page."""
    title: str
    layers: Sequence[Spec]
    """Layers in Vega-Lite, from back to front; ``data`` of each is the name of one of ``datasets``."""
    datasets: Mapping[str, Sequence[Row]]
    height: int

    @property
    def spec(self) -> Spec:
        """The chart in Vega-Lite, with the width of its container."""
        fit = {"type": "fit-x", "contains": "padding"}
        size = {"width": "container", "height": self.height, "autosize": fit}
        return {**size, "layer": list(self.layers), "description": self.title}

    def for_page(self) -> Row:
        """Return the chart in the form that the script of the page reads.

        Its rows are columns with rounded numbers: half the size in JSON.
        """
        data: dict[str, dict[str, list[Any]]] = {}
        for name, rows in self.datasets.items():
            columns = {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}
            for key, values in columns.items():
                columns[key] = [
                    round(value, _DECIMALS) if isinstance(value, float) else value for value in values
                ]
            data[name] = columns
        return {"key": self.key, "spec": self.spec, "data": data}


@dataclass(frozen=True)
class NoChart:
    """The place of a chart without data, with the reason."""

    title: str
    reason: str


@dataclass(frozen=True)
class ChartSection:
    """A section of the page, with charts that answer one question."""

    key: str
    title: str
    charts: Sequence[Chart | NoChart]
    wide: bool = False
    """Whether charts are below each other instead of side by side."""


# Parts of a description -----------------------------------------------------------------


def number(name: str, **others: Any) -> Spec:
    """Return the encoding of a field with numbers."""
    return {"field": name, "type": "quantitative", **others}


def word(name: str, **others: Any) -> Spec:
    """Return the encoding of a field with names."""
    return {"field": name, "type": "nominal", **others}


def layer(mark: Spec, where: str | None = None, **encoding: Any) -> Spec:
    """Return marks for the rows that meet a condition, or for all rows."""
    transform = {} if where is None else {"transform": [{"filter": where}]}
    return {**transform, "mark": mark, "encoding": encoding}


def layers_over(dataset: str, layers: Sequence[Spec], **encoding: Any) -> Spec:
    """Return layers with a common encoding over one of the datasets."""
    return {"data": {"name": dataset}, "encoding": encoding, "layer": list(layers)}


def axis(title: str, values: Sequence[float], *, zero: bool = True) -> Spec:
    """Return title and scale of an axis, which is logarithmic if its values span more than a decade."""
    low, high = min(values), max(values)
    if low <= 0 or high / low <= 10:
        return {"title": title, "scale": {"zero": zero, "nice": True}}
    return {"title": title, "scale": {"type": "log", "nice": True}, "axis": {"format": ",~g"}}


# Theme ----------------------------------------------------------------------------------

# Hues of Okabe and Ito (2008), distinguishable with any colour vision.
CATEGORIES = ["#2b8ac9", "#d98c00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"]
ASIDE = "#98a3b0"
"""Colour of requests that are not measured."""
FAILED = "#d55e00"
BAND = "band"
"""Style of the background of warm-up and drain."""
QUIET = "quiet"
"""Style of reference lines."""
_INK, _SOFT, _LINE = "#1c2430", "#5b6675", "#dfe4ea"
THEME: Spec = {
    "background": "transparent",
    "font": "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif",
    "axis": {
        **{"labelColor": _SOFT, "titleColor": _SOFT, "gridColor": _LINE, "domainColor": _LINE},
        **{"tickColor": _LINE, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"},
        "labelOverlap": "greedy",
    },
    "axisX": {"grid": False, "tickCount": 6},
    # All of one width, so that the time axes of charts line up.
    "axisY": {"ticks": False, "domain": False, "tickCount": 5, "minExtent": 40},
    "legend": {
        **{"orient": "top", "title": None, "columns": 3, "padding": 0, "offset": 8},
        **{"labelColor": _INK, "labelFontSize": 11, "symbolStrokeWidth": 2},
    },
    "view": {"stroke": None},
    "mark": {"color": CATEGORIES[0]},
    "line": {"strokeWidth": 2},
    "point": {"size": 40, "filled": True},
    "text": {"color": _SOFT, "fontSize": 11},
    "range": {"category": CATEGORIES, "ordinal": {"scheme": "viridis", "extent": [0.0, 0.8]}},
    "style": {
        BAND: {"fill": "#8592a3", "fillOpacity": 0.18},
        QUIET: {"stroke": _SOFT, "strokeDash": [4, 4], "strokeWidth": 1, "color": _SOFT},
    },
}
"""The Vega configuration of every chart."""
