"""Charts as Vega-Lite descriptions: their data, axes and colours; drawn in the page or as a PNG."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from trtllm_hpc.errors import TrtllmHpcError

Row: TypeAlias = dict[str, Any]

PNG_WIDTH = 800
"""In points; a PNG has two pixels for each point."""
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
    spec: dict[str, Any]
    """Vega-Lite without data; each ``data`` names one of ``datasets``."""
    datasets: Mapping[str, Sequence[Row]]
    note: str | None = None
    """What the chart leaves out, or how to read it."""


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
    intro: str
    charts: Sequence[Chart | NoChart]
    wide: bool = False
    """Whether charts stand one below the other, instead of side by side."""


def altair() -> Any:
    """Import and return Altair. Raises TrtllmHpcError if it is not installed, or cannot be imported."""
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise TrtllmHpcError(
            f"The report needs the Python package {error.name!r}, which is not installed.",
            hint="pip install 'trtllm-hpc[report]'",
        ) from error
    except Exception as error:  # with PYTHONOPTIMIZE=2 it misses its own docstrings
        hint = "unset PYTHONOPTIMIZE" if sys.flags.optimize else "pip install --upgrade 'trtllm-hpc[report]'"
        raise TrtllmHpcError(f"Altair cannot be imported: {error}.", hint=hint) from error
    return altair


def described(chart: Any, height: int) -> dict[str, Any]:
    """Return an Altair chart as plain Vega-Lite, as wide as its container, without Altair's configuration."""
    sized = chart.properties(width="container", height=height)
    # Not validated here: the shape is the same for every measurement, and the tests check it.
    plain: dict[str, Any] = sized.to_dict(validate=False)
    plain.pop("config", None)
    plain["autosize"] = {"type": "fit-x", "contains": "padding"}
    return plain


def columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return rows as columns with rounded numbers: half the size in JSON."""
    names = list(rows[0]) if rows else []
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in names}
    return {
        name: [round(value, _DECIMALS) if isinstance(value, float) else value for value in values]
        for name, values in columns.items()
    }


def for_page(chart: Chart) -> dict[str, Any]:
    """Return the chart in the form that the page's script reads."""
    spec = {**chart.spec, "description": chart.description}
    data = {name: columns(rows) for name, rows in chart.datasets.items()}
    return {"key": chart.key, "spec": spec, "data": data}


def as_png(chart: Chart, config: dict[str, Any]) -> bytes:
    """Draw the chart as a PNG, from the same description and rows."""
    import vl_convert

    spec = {
        **chart.spec,
        "width": PNG_WIDTH,
        "title": chart.title,
        "datasets": {name: list(rows) for name, rows in chart.datasets.items()},
    }
    return vl_convert.vegalite_to_png(spec, config=config, scale=2)


# Axes -----------------------------------------------------------------------------------


_DECADE = 10.0
"""Ratio of largest to smallest value above which an axis is logarithmic."""


def is_wide(values: Sequence[float]) -> bool:
    """Whether the values need a logarithmic axis."""
    return min(values) > 0 and max(values) / min(values) > _DECADE


def scale(alt: Any, values: Sequence[float], *, zero: bool = True) -> Any:
    """Return the scale for the values: logarithmic if they span more than a decade."""
    if is_wide(values):
        marks = round_marks(min(values), max(values))
        return alt.Scale(type="log", domain=[marks[0], marks[-1]], nice=False)
    return alt.Scale(zero=zero, nice=True)


def axis(alt: Any, values: Sequence[float], **others: Any) -> Any:
    """Return the axis for :func:`scale`, with marks at round numbers."""
    if not is_wide(values):
        return alt.Axis(**others)
    marks = round_marks(min(values), max(values))
    # Without tickCount, Vega drops some of the marks.
    return alt.Axis(values=marks, tickCount=len(marks), format=",~g", **others)


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

FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
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


def _config(*, ink: str, soft: str, line: str, extent: tuple[float, float]) -> dict[str, Any]:
    axis = {
        "labelColor": soft,
        "titleColor": soft,
        "gridColor": line,
        "domainColor": line,
        "tickColor": line,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelOverlap": "greedy",
    }
    return {
        "background": "transparent",
        "font": FONT,
        "axis": axis,
        "axisX": {"grid": False, "tickCount": 6},
        # All of one width, so that the time axes of charts line up.
        "axisY": {"ticks": False, "domain": False, "tickCount": 5, "minExtent": 40},
        "legend": {
            "orient": "top",
            "title": None,
            "labelColor": ink,
            "labelFontSize": 11,
            "columns": 3,
            "symbolStrokeWidth": 2,
            "padding": 0,
            "offset": 8,
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
