"""Axes whose lines stand at round numbers: a logarithmic one draws nine a decade by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_DECADE = 10.0
"""A ratio of largest to smallest above which an axis is logarithmic."""


def is_wide(values: Sequence[float]) -> bool:
    """Whether the values are better seen on a logarithmic axis."""
    return min(values) > 0 and max(values) / min(values) > _DECADE


def scale(alt: Any, values: Sequence[float], *, zero: bool = True) -> Any:
    """The scale for the values: logarithmic if they spread over more than a decade."""
    if is_wide(values):
        marks = round_marks(min(values), max(values))
        return alt.Scale(type="log", domain=[marks[0], marks[-1]], nice=False)
    return alt.Scale(zero=zero, nice=True)


def axis(alt: Any, values: Sequence[float], **others: Any) -> Any:
    """The axis of that scale."""
    if not is_wide(values):
        return alt.Axis(**others)
    marks = round_marks(min(values), max(values))
    # Without the number Vega leaves out marks until no more are left than it likes.
    return alt.Axis(values=marks, tickCount=len(marks), format=",~g", **others)


def round_marks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10...: from the last that is at most ``low`` to the first that is at least ``high``.

    Over more than three decades: whole decades only.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if high / low <= _DECADE**3 else (1,)
    marks = [digit * _DECADE**decade for decade in decades for digit in digits]
    first = max(place for place, mark in enumerate(marks) if mark <= low * (1 + 1e-9))
    last = min(place for place, mark in enumerate(marks) if mark >= high * (1 - 1e-9))
    return marks[first : last + 1]
