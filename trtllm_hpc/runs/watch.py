"""Following a run to its end, or to its endpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from trtllm_hpc.bench.progress import Snapshot, read_progress
from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runs.status import RunStatus, run_status
from trtllm_hpc.runtime.records import RankRecord, StopRequest, read_events
from trtllm_hpc.scheduler.journal import read_journal
from trtllm_hpc.scheduler.slurm import Slurm

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0
_FILE_PAUSE_S = 0.5
_CONTROLLER_GONE_S = 900.0
"""How long a controller that has answered before may stay silent; a busy one misses answers."""
_SETTLE_S = 60.0
"""How long the other stages of a failed run may take to end before we stop looking."""


@dataclass(frozen=True)
class Progress:
    """How far a run is: Slurm's view, and what the job itself wrote."""

    status: RunStatus
    build: tuple[int, int, str] | None
    """Step, number of steps, and what is being done."""
    ranks_up: int
    world_size: int
    benchmark: Snapshot | None
    """How far the companion's measurement is."""
    stopping: bool
    """Whether somebody has asked the server to stop."""


def follow(paths: RunPaths, *, keeps_serving: bool = False) -> Iterator[Progress]:
    """Yield the progress until the run has ended or, if it is to go on serving, nothing else is left to do.

    The run's own files are read twice a second. Slurm is asked at growing
    pauses, at once when the files show that a stage began or ended: a watched
    run must not be a burden on the controller.
    """
    journal = read_journal(paths)
    slurm = Slurm(journal.slurm_conf if journal else None)
    pause, asked_at, answered_at, marks = _FIRST_PAUSE_S, float("-inf"), float("-inf"), -1
    status: RunStatus | None = None
    final_since: float | None = None
    while True:
        seen = len(read_events(paths))
        if status is None or seen != marks or time.monotonic() - asked_at > pause:
            pause = _FIRST_PAUSE_S if seen != marks else min(pause * 1.5, _LONGEST_PAUSE_S)
            try:
                status, answered_at = run_status(paths, slurm), time.monotonic()
            except SubmissionError as error:
                silent_s = time.monotonic() - answered_at
                if status is None or not error.transient or silent_s > _CONTROLLER_GONE_S:
                    raise
            asked_at, marks = time.monotonic(), seen
        yield _progress(paths, status)
        if status.settled or (keeps_serving and _only_serves(paths, status)):
            return
        if not status.state.final:
            final_since = None
        elif final_since is None:
            final_since = time.monotonic()
        elif time.monotonic() - final_since > _SETTLE_S:
            return
        time.sleep(_FILE_PAUSE_S)


def _only_serves(paths: RunPaths, status: RunStatus) -> bool:
    """Whether the server is ready and the companion, if there is one, is done, well or not."""
    serves = any(it.stage == "serve" and it.state == "RUNNING" for it in status.stages)
    if not serves or not paths.endpoint.exists():
        return False
    # A companion inside the server's allocation is no stage of Slurm's: its events tell.
    companion = {event.name for event in read_events(paths, "companion")}
    others = (stage.final for stage in status.stages if stage.stage != "serve")
    return all(others) and ("stage_begin" not in companion or "stage_end" in companion)


def _progress(paths: RunPaths, status: RunStatus) -> Progress:
    plan = read_json(paths.plan) or {}
    world_size = int(plan.get("layout", {}).get("world_size", 0))
    records = (RankRecord.read(paths.rank_record("serve", rank)) for rank in range(world_size))
    up = sum(1 for record in records if record is not None and record.ended_at is None)
    stopping = StopRequest.read(paths.stop_request) is not None
    benchmark = read_progress(paths.benchmark_progress)
    return Progress(status, _build_step(paths), up, world_size, benchmark, stopping)


def _build_step(paths: RunPaths) -> tuple[int, int, str] | None:
    steps = [event.data for event in read_events(paths, "build") if event.name == "progress"]
    if not steps:
        return None
    return int(steps[-1]["step"]), int(steps[-1]["of"]), str(steps[-1]["message"])
