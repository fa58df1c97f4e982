"""Small charts of one line of text."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
_NOTHING = " "


def sparkline(values: Sequence[float | None], *, lowest: float | None = None) -> str:
    """A block for each value, as high as it is among them and ``lowest``; a space for ``None``."""
    known = [value for value in values if value is not None]
    if not known:
        return _NOTHING * len(values)
    low = min(known) if lowest is None else lowest
    width = (max(known) - low) or 1.0
    top = len(BLOCKS) - 1
    return "".join(
        _NOTHING if value is None else BLOCKS[min(top, max(0, int((value - low) / width * len(BLOCKS))))]
        for value in values
    )


def spread(values: Sequence[float], bins: int) -> str:
    """How values spread from the smallest to the largest: a block a bin, a space where there are none."""
    if not values:
        return ""
    low, high = min(values), max(values)
    counts = [0] * bins
    for value in values:
        place = int((value - low) / (high - low) * bins) if high > low else 0
        counts[min(place, bins - 1)] += 1
    return sparkline([count or None for count in counts], lowest=0)


def over_time(moments: Sequence[tuple[float, float]], begin: float, end: float, bins: int) -> str:
    """Mean of the values at ``moments`` in equal stretches of time: a space where there are none."""
    if not moments or end <= begin:
        return ""
    found: list[list[float]] = [[] for _ in range(bins)]
    for time, value in moments:
        place = int((time - begin) / (end - begin) * bins)
        found[min(max(place, 0), bins - 1)].append(value)
    return sparkline([sum(values) / len(values) if values else None for values in found], lowest=0)
