"""Follow a run to its end, or until only its server is left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from trtllm_hpc.bench.progress import Snapshot, read_progress
from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.logs.reading import last_lines, stat_of
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.endpoint import endpoint_of
from trtllm_hpc.runs.status import RunStatus, build_step, run_status, unanswered_status
from trtllm_hpc.scheduler.slurm import JobWatcher, Slurm

_FILE_PAUSE_S = 0.5
_CONTROLLER_GONE_S = 900.0
"""Seconds that the controller may not answer: it has just accepted the jobs, and may be busy."""
_SETTLE_S = 60.0
"""Seconds that the other stages of a failed run may take to end before the watch ends."""
_GONE_S = 5.0
"""Seconds that the run folder may be missing: a shared file system may not show it for a moment."""
_LOG_LINES = 5


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run, from Slurm and from the job's own files."""

    status: RunStatus
    details: Mapping[str, str]
    """Current activity of each running stage, in words."""
    benchmark: Snapshot | None
    """Progress of the companion's measurement."""
    at: float
    """Time at which the progress was read, in seconds since the epoch."""
    log: tuple[str, ...] = ()
    """The last lines of the log of the running build, or of the server's rank 0."""

    @property
    def sentences(self) -> dict[str, tuple[str, str]]:
        """State and details of each stage, by stage; the details may be empty."""
        stages = self.status.stages
        return {stage.stage: (stage.sentence, self.details.get(stage.stage, "")) for stage in stages}

    def __str__(self) -> str:
        return "; ".join(f"{stage}: {joined(*words)}" for stage, words in self.sentences.items())


def joined(state: str, detail: str) -> str:
    """Return the state of a stage with its details."""
    return f"{state}, {detail}" if detail else state


def follow(paths: RunPaths, *, keeps_serving: bool = False) -> Iterator[RunProgress]:
    """Yield the progress until the run has ended; with ``keeps_serving``, until only its server is left.

    The run's own files are read twice a second. To spare the controller, Slurm is queried after growing
    pauses, and at once when the files have a new event. Raises SubmissionError if Slurm does not answer for
    15 minutes, or refuses.
    """
    watcher = JobWatcher(Slurm(*RunSnapshot(paths).controller))
    answered_at, seen_events, queries = time.monotonic(), -1, -1
    status: RunStatus | None = None
    final_since: float | None = None
    while True:
        silent_s = time.monotonic() - answered_at
        if silent_s < _CONTROLLER_GONE_S and stat_of(paths.folder) and not os.access(paths.folder, os.X_OK):
            time.sleep(
                _FILE_PAUSE_S
            )  # somebody has closed the folder, probably by mistake: wait until it is open
            continue
        run = RunSnapshot(paths)
        events = len(run.all_events)
        if events != seen_events:
            watcher.restart_pauses()
        try:
            watcher.refresh()
            if status is None or not status.stages or events != seen_events or watcher.queries != queries:
                status = run_status(run, watcher, mode="standard")
                answered_at = time.monotonic()
        except SubmissionError as error:
            if not error.transient or silent_s > _CONTROLLER_GONE_S:
                raise
            status = status or unanswered_status(run)
        seen_events, queries = events, watcher.queries
        yield _progress(run, status)
        if status.settled or (keeps_serving and _only_serves(run, status)):
            return
        if not status.state.final:
            final_since = None
        elif final_since is None:
            final_since = time.monotonic()
        elif time.monotonic() - final_since > (_SETTLE_S if status.stages else _GONE_S):
            return
        time.sleep(_FILE_PAUSE_S)


def follow_until_ready(
    paths: RunPaths, timeout_s: float, show: Callable[[RunProgress], object] | None = None
) -> RunStatus:
    """Wait for the endpoint, ``show`` the progress meanwhile, and return the status.

    Raises like :func:`endpoint_of`.
    """
    following = follow(paths)

    def look(waited_s: float) -> None:
        progress = next(following, None)
        if show is not None and progress is not None:
            show(progress)

    endpoint_of(paths, timeout_s, on_wait=None if show is None else look)
    run = RunSnapshot(paths)
    status = run_status(run)
    if show is not None:
        show(_progress(run, status))
    return status


def _only_serves(run: RunSnapshot, status: RunStatus) -> bool:
    """Return whether the server is ready and alive, and the companion, if there is one, has ended."""
    serves = any(stage.stage == "serve" and stage.state == "RUNNING" for stage in status.stages)
    # A dead rank may mean that the server is ending, even if the supervisor has not noticed yet. It does not,
    # if another instance still serves.
    states = {instance.state for instance in status.instances}
    died = any(rank.ended_at is not None for step in run.steps("serve") for rank in run.ranks(step))
    ending = run.stop_request is not None or (died and ("ready" not in states or states == {"ready"}))
    if not serves or ending or stat_of(run.paths.endpoint) is None:
        return False
    # A companion in the server's allocation has no job of its own, so its events decide.
    companion = {event.name for event in run.events("companion")}
    others = (stage.final for stage in status.stages if stage.stage != "serve")
    return all(others) and ("stage_begin" not in companion or "stage_end" in companion)


def _progress(run: RunSnapshot, status: RunStatus) -> RunProgress:
    running = {stage.stage for stage in status.stages if stage.state == "RUNNING"}
    benchmark, endpoint = read_progress(run.paths.benchmark_progress), status.endpoint
    steps, details = [], dict[str, str]()
    if "build" in running:
        steps.append("build")
        if (step := build_step(run)) is not None:
            details["build"] = f"step {step[0]} of {step[1]}: {step[2]}"
    if "serve" in running:
        steps += run.steps("serve")[:1]
        up = sum(rank.ended_at is None for step in run.steps("serve") for rank in run.ranks(step))
        details["serve"] = f"{up} of {0 if run.plan is None else sum(run.plan.world_sizes)} ranks up"
        if run.stop_request is not None:
            details["serve"] = "stopping"
        elif endpoint is not None:
            details["serve"] = f"ready at {endpoint.place} ({endpoint.host})"
    if "companion" in running:
        details["companion"] = "waits for the endpoint" if endpoint is None else "sends requests"
        if benchmark is not None:
            details["companion"] = f"benchmark: {benchmark}"
    log = last_lines(run.paths.rank_log(steps[0], 0), _LOG_LINES) if steps else []
    return RunProgress(status, details, benchmark, time.time(), tuple(map(run.quoted, log)))
