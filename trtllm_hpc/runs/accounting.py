"""What a run has used: GPU-hours, energy, power and time in the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.stages import StageStatus
from trtllm_hpc.runtime.guests import IDLE
from trtllm_hpc.runtime.records import Event
from trtllm_hpc.scheduler.job_info import JobTimes

_HOUR_S = 3600.0


@dataclass(frozen=True)
class RunUse:
    """What a run has used so far; ``None`` is what is not known."""

    waited_s: float | None
    """From the submission to the start of the first job."""
    gpu_hours: float | None
    """Of all its jobs, also of those before ``resume``, and of the servers before the last renewal."""
    energy_j: float | None
    """In joules, of the stages whose energy Slurm has measured."""
    server_mean_w: float | None = None
    """Mean power of all GPUs of the server since its last start, by NVML."""
    server_peak_w: float | None = None
    """The highest power of each of them, added up."""
    saved_gpu_hours: float | None = None
    """From the end of a server that nobody asked (``serve.idle_minutes``) to the time limit of its job."""


NOTHING = RunUse(None, None, None)


def run_use(run: RunSnapshot, stages: Sequence[StageStatus]) -> RunUse:
    """Return what the stages of a run, and the jobs that ran them before, have used together."""
    # The next job of a renewed server has waited for the end of the one before, not for the run to begin.
    is_first = run.renewal is None or run.renewal.number == 0
    times = [stage.times for stage in stages if is_first or stage.stage != "serve"]
    submitted = [it.submitted_at for it in times if it.submitted_at is not None]
    starts = [it.started_at for it in times if it.started_at is not None]
    energies = [stage.energy_j for stage in stages if stage.energy_j is not None]
    hours = [stage.gpu_hours for stage in stages if stage.gpu_hours is not None]
    earlier = _earlier_gpu_hours(run, {stage.stage: stage.times.started_at for stage in stages})
    mean_w, peak_w = _server_power(run)
    return RunUse(
        waited_s=max(0.0, min(starts) - min(submitted)) if starts and submitted else None,
        gpu_hours=sum(hours) + earlier if hours or earlier else None,
        energy_j=sum(energies) if energies else None,
        server_mean_w=mean_w,
        server_peak_w=peak_w,
        saved_gpu_hours=next((_saved_gpu_hours(run, it.times) for it in stages if it.stage == "serve"), None),
    )


def _server_power(run: RunSnapshot) -> tuple[float, float] | tuple[None, None]:
    """Return mean and peak power of the server's GPUs together since its last start, by NVML."""
    gpus = {gpu["uuid"]: gpu for step in run.serve_steps for rank in run.ranks(step) for gpu in rank.gpus}
    if not gpus or not all(gpu["total_s"] for gpu in gpus.values()):
        return None, None
    mean_w = sum(gpu["total_j"] / gpu["total_s"] for gpu in gpus.values())
    return mean_w, sum(gpu["total_peak_w"] for gpu in gpus.values())


def _earlier_gpu_hours(run: RunSnapshot, started: Mapping[str, float | None]) -> float:
    """Return the GPU-hours of the jobs before the present ones, each up to its last event.

    ``started``: when the present job of each stage started; ``None``: it has not.
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
        total += sum(max(0.0, end - begin) for begin, end in spans) * gpus / _HOUR_S
    return total


def _saved_gpu_hours(run: RunSnapshot, times: JobTimes) -> float | None:
    """Return the GPU-hours that a server of these times has not used because nobody asked it.

    ``None`` if it has not ended for that reason, or has no time limit.
    """
    request = run.stop_request
    serve = None if run.plan is None else run.plan.stage("serve")
    if request is None or request.by != IDLE or run.is_local or serve is None:
        return None
    if not times.started_at or not times.ended_at:
        return None
    left_s = serve.first.minutes * 60 - (times.ended_at - times.started_at)
    return max(0.0, left_s) * serve.gpus / _HOUR_S


def _spans(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Return begin and last event of each job that ran a stage."""
    spans: list[tuple[float, float]] = []
    for event in events:
        if event.name == "stage_begin":
            spans.append((event.time, event.time))
        elif spans:
            spans[-1] = (spans[-1][0], event.time)
    return spans
