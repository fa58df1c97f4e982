"""What a run has used: GPU-hours, by the run's own events, and the power of its GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Event


@dataclass(frozen=True)
class StageUse:
    """What one stage has used, by its own events."""

    stage: str
    waited_s: float | None
    """From the submission to the start of its last job."""
    ran_s: float
    """Of all the jobs that ran it."""
    gpus: int
    gpu_hours: float
    mean_w: float | None = None
    """Of the server's GPUs together, by NVML."""
    peak_w: float | None = None
    """The highest power of each of them, added up."""


def uses_from_events(run: RunSnapshot, now: float | None = None) -> list[StageUse]:
    """Return what each stage that has begun has used; Slurm is not asked.

    A stage without an end counts until ``now``; ``None``: until its last event.
    """
    uses = []
    for stage, gpus in run.planned_gpus.items():
        events = run.events(stage)
        if not (spans := _spans(events)):
            continue
        if now is not None and events[-1].name != "stage_end":
            spans[-1] = (spans[-1][0], now)
        job = run.submission.stages.get(stage) if run.submission else None
        waited_s = None if job is None else max(0.0, spans[-1][0] - job.submitted_at)
        power = server_power(run) if stage == "serve" else (None, None)
        hours = _hours(spans)
        uses.append(StageUse(stage, waited_s, hours * 3600, gpus, hours * gpus, *power))
    return uses


def server_power(run: RunSnapshot) -> tuple[float, float] | tuple[None, None]:
    """Return mean and peak power of the server's GPUs together since its last start, by NVML."""
    gpus = {gpu["uuid"]: gpu for step in run.serve_steps for rank in run.ranks(step) for gpu in rank.gpus}
    if not gpus or not all(gpu["total_s"] for gpu in gpus.values()):
        return None, None
    mean_w = sum(gpu["total_j"] / gpu["total_s"] for gpu in gpus.values())
    return mean_w, sum(gpu["total_peak_w"] for gpu in gpus.values())


def earlier_gpu_hours(run: RunSnapshot, started: Mapping[str, float | None]) -> float:
    """Return the GPU-hours of the jobs before the present ones (``resume``, ``serve.renew``).

    Each counts up to its last event. ``started``: when the present job of each stage started, if it has.
    """
    earlier: list[RunSnapshot] = []
    with suppress(OSError):
        earlier += [RunSnapshot(RunPaths(attempt)) for attempt in run.paths.attempts.iterdir()]
    total = 0.0
    for stage, gpus in run.planned_gpus.items():
        before = started.get(stage)
        # Slurm's times have whole seconds: the next job of a renewed server begins in the same one.
        spans = [span for span in _spans(run.events(stage)) if before and span[1] < before + 1]
        spans += [span for attempt in earlier for span in _spans(attempt.events(stage))]
        total += _hours(spans) * gpus
    return total


def _hours(spans: Iterable[tuple[float, float]]) -> float:
    """Return the hours of all spans; an end before its begin, by another clock, counts for nothing."""
    return sum(max(0.0, end - begin) for begin, end in spans) / 3600


def _spans(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Return begin and last event of each job that ran a stage."""
    spans: list[tuple[float, float]] = []
    for event in events:
        if event.name == "stage_begin":
            spans.append((event.time, event.time))
        elif spans:
            spans[-1] = (spans[-1][0], event.time)
    return spans
