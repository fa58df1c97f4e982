"""One chart: a Vega-Lite description, its rows, and its words; drawn in the page or as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from trtllm_hpc.errors import TrtllmHpcError

Row: TypeAlias = dict[str, Any]

PNG_WIDTH = 800
"""Points; a PNG has two pixels a point."""
_DECIMALS = 4
"""Of each number in the page: 0.1 ms of seconds, finer than a screen shows; it keeps the page small."""


@dataclass(frozen=True)
class Chart:
    """A chart that can be drawn."""

    key: str
    """Of the element in the page, and of the PNG's name."""
    title: str
    description: str
    """What is seen, for readers who do not see it."""
    spec: dict[str, Any]
    """Vega-Lite without data; each ``data`` names one of ``datasets``."""
    datasets: Mapping[str, Sequence[Row]]
    note: str | None = None
    """What the chart leaves out, and how to read it."""


@dataclass(frozen=True)
class NoChart:
    """Where a chart would stand, with the reason why there is none."""

    title: str
    reason: str


@dataclass(frozen=True)
class Section:
    """Charts of one question."""

    key: str
    title: str
    intro: str
    charts: list[Chart | NoChart] = field(default_factory=list)
    wide: bool = False
    """One chart beneath the other instead of side by side."""


def altair() -> Any:
    """The library that describes charts.

    Raises:
        TrtllmHpcError: it is not installed.
    """
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise TrtllmHpcError(
            f"The report needs the Python package {error.name!r}, which is not installed.",
            hint="pip install 'trtllm-hpc[report]'",
        ) from error
    return altair


def described(chart: Any, height: int) -> dict[str, Any]:
    """An Altair chart as plain Vega-Lite: as wide as its place, without Altair's own configuration."""
    sized = chart.properties(width="container", height=height)
    # What is described is the same for every measurement: the tests check it against the schema.
    plain: dict[str, Any] = sized.to_dict(validate=False)
    plain.pop("config", None)
    plain["autosize"] = {"type": "fit-x", "contains": "padding"}
    return plain


def columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Rows as columns with rounded numbers: half the size in JSON."""
    names = list(rows[0]) if rows else []
    return {name: [_short(row[name]) for row in rows] for name in names}


def _short(value: Any) -> Any:
    return round(value, _DECIMALS) if isinstance(value, float) else value


def for_page(chart: Chart) -> dict[str, Any]:
    """The chart as the page's script takes it."""
    spec = {**chart.spec, "description": chart.description}
    data = {name: columns(rows) for name, rows in chart.datasets.items()}
    return {"key": chart.key, "spec": spec, "data": data}


def as_png(chart: Chart, config: dict[str, Any]) -> bytes:
    """The chart as a PNG, from the same description and rows."""
    import vl_convert

    spec = {
        **chart.spec,
        "width": PNG_WIDTH,
        "title": chart.title,
        "datasets": {name: list(rows) for name, rows in chart.datasets.items()},
    }
    return vl_convert.vegalite_to_png(spec, config=config, scale=2)
