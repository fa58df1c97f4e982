"""The passes of a measurement in their order, each with the planned length of those after it."""

from __future__ import annotations

from trtllm_hpc.bench.arrivals import requests_of
from trtllm_hpc.bench.levels import Level, OpenLoop, levels_of
from trtllm_hpc.bench.passes import closed_length
from trtllm_hpc.bench.progress import Step
from trtllm_hpc.config.benchmark import Benchmark


def step_of(settings: Benchmark, place: int, level: Level, repeat: int) -> Step:
    """One pass, for those who follow the measurement.

    Args:
        place: of the level among all; those of a search are not known beforehand.
    """
    if settings.find_max:
        return Step(place, None, level.label, repeat, settings.repeats)
    levels = levels_of(settings)
    lengths = [length_s(it, settings) for it in levels[place:]]
    then_s = _then_s(lengths, settings.repeats, repeat)
    return Step(place, len(levels), level.label, repeat, settings.repeats, then_s=then_s)


def length_s(level: Level, settings: Benchmark) -> float | None:
    """How long a pass sends, in seconds; ``None`` where the server's answers or a trace decide."""
    if not isinstance(level, OpenLoop):
        return closed_length(level, settings)[1]
    if level.arrival == "trace":
        return None
    warmup, measured = requests_of(level, settings)
    mean_rate = (level.rate_per_s + (level.ramp_to_per_s or level.rate_per_s)) / 2
    return warmup / level.rate_per_s + measured / mean_rate


def _then_s(lengths: list[float | None], repeats: int, repeat: int) -> float | None:
    """The length of all passes after this one: the rest of its level, the first, and the levels behind it."""
    left = [
        *lengths[:1] * (repeats - repeat - 1),
        *(length for length in lengths[1:] for _ in range(repeats)),
    ]
    known = [length for length in left if length is not None]
    return sum(known) if len(known) == len(left) else None
