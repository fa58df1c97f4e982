"""Options of ``trtllm-hpc bench`` that would do nothing.

A job file has every default written out, so a setting without a use is no
mistake there. What somebody has typed is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtllm_hpc.config.benchmark import Benchmark

Given = Mapping[str, Any]
Conflicts = Iterator[tuple[str, str]]
"""The field of an option, and what is to be told of it."""


def without_effect(settings: Benchmark, given: Given) -> list[tuple[str, str]]:
    """What was typed and would do nothing, by its field, in sentences.

    Args:
        settings: with what was typed in the place of the run's own.
        given: what was typed, by its dotted field.
    """
    rules: tuple[Callable[[Benchmark, Given], Conflicts], ...] = (_either, _loops, _gaps, _trace, _search)
    return [conflict for rule in rules for conflict in rule(settings, given)]


_EITHER = (
    ("requests", "duration_seconds", "the window ends after --requests or after --duration; leave one out."),
    ("warmup_requests", "warmup_seconds", "--warmup says how long it is, too; leave one out."),
    ("slo", "no_slo", "takes away what --slo sets; leave one out."),
)
"""Options that go without each other, and what is told of the second."""


def _either(settings: Benchmark, given: Given) -> Conflicts:
    for one, other, words in _EITHER:
        if {one, other} <= given.keys():
            yield other, words


def _loops(settings: Benchmark, given: Given) -> Conflicts:
    if {"rate_per_second", "concurrency"} <= given.keys():
        yield "rate_per_second", "a rate is an open loop's, and --concurrency a closed one's; leave one out."


def _gaps(settings: Benchmark, given: Given) -> Conflicts:
    if settings.closed_loop:
        for field in ("arrival", "burstiness"):
            if field in given:
                yield field, "a closed loop has no gaps between sends; leave it or --concurrency out."
    elif "burstiness" in given and settings.arrival != "gamma":
        yield "burstiness", f"shapes gaps of --arrival gamma, and these are of {settings.arrival}; add it."


def _trace(settings: Benchmark, given: Given) -> Conflicts:
    own_times = settings.arrival == "trace"
    if "rate_per_second" in given and own_times and "concurrency" not in given:
        hint = "leave it out, make the trace faster with --speed, or add --arrival poisson."
        yield "rate_per_second", f"a trace brings its own times; {hint}"
    timeless = settings.workload.kind == "trace" and (settings.closed_loop or not own_times)
    if "workload.speed" in given and timeless:
        yield "workload.speed", "the times of the trace are not used; leave it out."


def _search(settings: Benchmark, given: Given) -> Conflicts:
    if given.get("find_max") and len(given.get("rate_per_second", ())) > 1:
        yield "rate_per_second", "--find-max begins at one rate and finds the others itself; name one."
