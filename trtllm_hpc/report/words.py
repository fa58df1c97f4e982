"""Figures as people read them."""

from __future__ import annotations

from trtllm_hpc.bench.results import Interval, SearchResult

NONE = "-"
_LONGEST_TEXT = 300


def quantity(value: float | None, digits: int = 3) -> str:
    """A number with ``digits`` significant digits and its whole part: ``1,234``, ``12.3``, ``0.0123``."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{digits - whole}f}" if whole else f"{value:.{digits}g}"


def share(value: float | None) -> str:
    """A share as percentage: ``0 %``, ``1.25 %``."""
    return NONE if value is None else f"{quantity(100 * value)} %"


def cut(text: str) -> str:
    """The beginning of a text: lists of prompts, and errors such as a proxy's page, may be of any length."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def of_levels(count: int) -> str:
    """``1 level`` or ``5 levels``."""
    return f"{count} level{'s' if count != 1 else ''}"


def low_of(interval: Interval) -> float:
    """Its lower end; the figure itself of a single pass."""
    return interval.mean if interval.low is None else interval.low


def high_of(interval: Interval) -> float:
    """Its upper end; the figure itself of a single pass."""
    return interval.mean if interval.high is None else interval.high


def with_interval(interval: Interval) -> str:
    """``12.3 (11.9 to 12.7)``; the figure alone of a single pass."""
    if interval.low is None or interval.high is None:
        return quantity(interval.mean)
    return f"{quantity(interval.mean)} ({quantity(interval.low)} to {quantity(interval.high)})"


def plus_minus(interval: Interval) -> str:
    """Return the margin of the interval, as ``± 1.2``; empty for a single pass.

    It is taken from the upper end, because the lower one is cut at 0.
    """
    if interval.high is None:
        return ""
    return f"± {quantity(interval.high - interval.mean, 2)}"


def search_words(search: SearchResult) -> str:
    """What a search has found, in one or two sentences."""
    if search.max_rate_per_s is None:
        found = f"No rate that was tried holds {search.slo}."
    elif search.first_failing_per_s is None:
        found = f"{search.slo} holds at {search.max_rate_per_s:g} requests/s; no rate above it failed."
    else:
        found = f"{search.slo} holds at {search.max_rate_per_s:g} requests/s, and fails at "
        found += f"{search.first_failing_per_s:g}."
    return f"{found} {search.stopped}" if search.stopped else found
