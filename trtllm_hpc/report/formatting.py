"""Format figures, sizes and times for people."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtllm_hpc.bench.results import Interval

NONE = "-"
_LONGEST_TEXT = 300


def quantity(value: float | None, digits: int = 3) -> str:
    """Format a number with ``digits`` significant digits, but all digits of its integer part: ``1,234``."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{digits - whole}f}" if whole else f"{value:.{digits}g}"


def share(value: float | None) -> str:
    """Format a share as a percentage: ``0 %``, ``1.25 %``."""
    return NONE if value is None else f"{quantity(100 * value)} %"


def cut(text: str) -> str:
    """Return the beginning of a text such as a proxy's error page, which can have any length."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def plus_minus(interval: Interval) -> str:
    """Format the margin of an interval, as ``± 1.2``; empty for a single pass.

    The margin is that of the upper end, because the lower end is at least 0.
    """
    return "" if interval.high is None else f"± {quantity(interval.high - interval.mean, 2)}"


def format_time(seconds: float | None) -> str:
    """Format a Unix time as local date and time."""
    return NONE if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def format_duration(seconds: float) -> str:
    """Format a rounded duration: ``3 days``, ``5 h``, ``12 min``, ``40 s``."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_bytes(count: float) -> str:
    """Format a size in the largest unit with a number of at least 1: ``512 B``, ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
