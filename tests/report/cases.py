"""Measurements of every kind that a report is written of, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from tests.report.make import Made, make, noted, searched
from trtllm_hpc.bench.results import OpenLoop, Verdict

HOSTILE = (
    "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>{{ 7 * 7 }}\u2028'\""
)
"""Ends a script, starts another, and is a template's expression."""


@cache
def sweep() -> Made:
    """Five rates, three times each; the last is more than the server can do."""
    return make([OpenLoop(rate) for rate in (2.0, 4.0, 8.0, 16.0, 24.0)], repeats=3, requests=120)


def _invalid() -> Made:
    made = make([OpenLoop(8.0), OpenLoop(30.0)], failed_share=0.2)
    many = [noted(f"Finding {number} of many.") for number in range(9)]
    return made.changed(verdict=Verdict([noted("20 % of requests failed, more than 1 %.")], many))


def _hostile() -> Made:
    made = make([OpenLoop(8.0), OpenLoop(9.0)], failed_share=0.3, error=HOSTILE, name=HOSTILE)
    workload = {"kind": HOSTILE, "prompts": [HOSTILE]}
    settings = {**made.measurement.settings, "slo": HOSTILE, "workload": workload}
    verdict = Verdict([noted(HOSTILE)], [noted(HOSTILE)])
    samples = [replace(one, values={f"queue_ms[{HOSTILE}]": 1.0, **one.values}) for one in made.samples]
    changed = made.changed(settings=settings, model=HOSTILE, provenance={HOSTILE: HOSTILE}, verdict=verdict)
    return Made(changed.measurement, made.records, samples)


def _bare() -> Made:
    made = make(requests=12, warmup=0)
    return Made(made.measurement, made.records, [])


def _interrupted() -> Made:
    """Somebody ended it before the first pass was over."""
    made = make(requests=1).changed(levels=[], tokens={}, verdict=Verdict([noted("Ended by Ctrl-C.")]))
    return Made(made.measurement, [], made.samples)


CASES: dict[str, Callable[[], Made]] = {
    "single": make,
    "sweep": sweep,
    "not streamed": lambda: make([OpenLoop(4.0), OpenLoop(8.0)], streaming=False),
    "invalid": _invalid,
    "nothing answered": lambda: make(failed_share=1.0),
    "search": cache(searched),
    "many levels": cache(lambda: make([OpenLoop(float(rate)) for rate in range(2, 26, 2)], requests=80)),
    "without samples": _bare,
    "interrupted": _interrupted,
    "hostile": cache(_hostile),
}
