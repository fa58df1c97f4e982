"""How charts look: one configuration for a light page, one for a dark one."""

from __future__ import annotations

from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
# Hues of Okabe and Ito (2008), told apart with any colour vision, in shades that are seen on white and on
# the dark page alike.
CATEGORIES = ["#2b8ac9", "#d98c00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"]
ASIDE = "#98a3b0"
"""Of what counts for nothing."""
FAILED = "#d55e00"
BAND = "band"
"""Style of what lies behind the lines: warm-up and drain."""
QUIET = "quiet"
"""Style of lines to compare with."""


def light() -> dict[str, Any]:
    """For a light page, and for PNGs."""
    return _config(ink="#1c2430", soft="#5b6675", line="#dfe4ea", band="#8592a3", extent=(0.0, 0.8))


def dark() -> dict[str, Any]:
    """For a dark page."""
    return _config(ink="#e8ecf1", soft="#a3aebb", line="#333d49", band="#8592a3", extent=(0.3, 1.0))


def _config(*, ink: str, soft: str, line: str, band: str, extent: tuple[float, float]) -> dict[str, Any]:
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
        # Of one width, so that time lines stand exactly one above the other.
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
            BAND: {"fill": band, "fillOpacity": 0.18},
            QUIET: {"stroke": soft, "strokeDash": [4, 4], "strokeWidth": 1, "color": soft},
        },
    }
