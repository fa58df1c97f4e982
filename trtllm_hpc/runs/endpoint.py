"""Find the endpoint of a run for ``client``, ``bench`` and ``metrics``, or the reason why it cannot come."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable

from trtllm_hpc.client.single_calls import not_ready
from trtllm_hpc.errors import (
    BuildFailed,
    JobLost,
    NotReady,
    RunCancelled,
    StartFailed,
    SubmissionError,
    TrtllmHpcError,
)
from trtllm_hpc.logs.files import stage_end
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.runtime.records import Endpoint, read_events
from trtllm_hpc.scheduler.states import LOST

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_HEALTH_TIMEOUT_S = 5.0
_SETTLE_S = 2.0
"""Seconds after which the end of a serve stage counts: a resubmitted job may not have recorded its begin
yet."""
_PROXY_SETTLE_S = 2.0
"""Seconds for the proxy, which checks twice a second, to see that an instance is ready."""
_RENEWAL_S = 300.0
_QUERY_PAUSE_S = 5.0
"""Seconds between the first two queries to Slurm; later pauses grow."""


def endpoint_of(
    run: RunPaths, wait_seconds: float, *, on_wait: Callable[[float], object] | None = None
) -> Endpoint:
    """Wait for the ready endpoint of a run; ask Slurm from time to time whether it can still come.

    With ``wait_seconds`` 0, wait only until the proxy has had time to see a ready server. With
    ``serve.renew``, wait at least five minutes for the next job. ``on_wait`` is called before each pause with
    the seconds waited so far.

    Raises BuildFailed, StartFailed, RunCancelled or JobLost if the endpoint cannot come any more; NotReady if
    it did not come within ``wait_seconds``.
    """
    if run.renewal.exists():
        wait_seconds = max(wait_seconds, _RENEWAL_S)
    started, pause_s, query_at_s = time.monotonic(), _FIRST_PAUSE_S, 0.0
    while True:
        endpoint = Endpoint.read(run.endpoint)
        left_s = wait_seconds - (time.monotonic() - started)
        if endpoint is None:
            why = _damage(run)
        elif (why := not_ready(endpoint, max(1.0, min(left_s, _HEALTH_TIMEOUT_S)))) is None:
            return endpoint
        end, waited_s = serve_end(run), time.monotonic() - started
        if end is not None and waited_s >= min(wait_seconds, _SETTLE_S):
            raise end
        left_s = (wait_seconds if endpoint is None else max(wait_seconds, _PROXY_SETTLE_S)) - waited_s
        if left_s > 0 and on_wait is not None:
            on_wait(waited_s)
        if left_s <= 0 or waited_s >= query_at_s:
            query_at_s = 2 * waited_s + _QUERY_PAUSE_S
            _refuse_ended(run)
        if left_s <= 0:
            raise _not_ready(run, endpoint, why, wait_seconds)
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def follower_of(run: RunPaths, *, restarts: bool = False) -> Callable[[], Endpoint] | None:
    """Return a function that finds the endpoint of the next job; ``None`` if no further job will serve.

    With ``restarts``, the function also waits for an instance that restarts.
    """

    def follow() -> Endpoint:
        states = {instance.get("state") for instance in RunSnapshot(run).instances or ()}
        return endpoint_of(run, _QUERY_PAUSE_S if states <= {"ended", "failed"} else _RENEWAL_S)

    return follow if run.renewal.exists() or (restarts and run.instances.exists()) else None


def serve_end(paths: RunPaths) -> TrtllmHpcError | None:
    """Return why there will be no server, as an error; ``None`` while a server may still become ready.

    There will be no server if events show that the serve stage has ended or the build has failed, and no
    further job waits to serve (``serve.renew``).
    """
    run = RunSnapshot(paths)
    end, renewal, stage = stage_end(run, "serve"), run.renewal, "serve stage"
    failed: type[TrtllmHpcError] = StartFailed
    if end is not None and renewal is not None:
        has_begun = renewal.job_id != end.data.get("job_id")  # the next job's begin may not be recorded yet
        if has_begun or renewal.next_job_id is not None:
            return None  # the next job will serve
    if end is None and not run.events("serve"):
        end, stage, failed = stage_end(run, "build"), "build", BuildFailed
        if end is not None and end.data.get("exit_code") == 0:
            return None
    if end is None:
        return None
    code = end.data.get("exit_code")
    if code == 0:
        return _already_ended(paths)
    how = "was cancelled" if code is None else f"ended with exit code {code}"
    sentence = f"The {stage} of run {paths.run_id} {how}, so there is no server."
    return (RunCancelled if code is None else failed)(sentence, hint=f"trtllm-hpc logs {call_name(paths)}")


def _refuse_ended(run: RunPaths) -> None:
    """Raise the error for a run whose server has ended or can never start, according to Slurm.

    The heartbeat of a companion ends it with a server that has begun. It asks Slurm about a job whose script
    never begins, as after a failed prolog.
    """
    is_companion = "TRTLLM_HPC_JOB_ID" in os.environ
    if not was_submitted(run) or (is_companion and RunSnapshot(run).events("serve")):
        return
    from trtllm_hpc.runs.status import run_status  # not needed where the server is ready

    snapshot = RunSnapshot(run)
    try:
        status = run_status(snapshot)
    except SubmissionError:
        return  # Slurm does not answer now; the wait is bounded anyway
    # For a server that was started again by hand the end of the first build does not matter.
    deciding = ("serve",) if snapshot.events("serve") else ("build", "serve")
    for stage in status.stages:
        if is_companion and stage.state == LOST.name:
            continue  # a companion whose Slurm does not know the run's jobs proves nothing
        if stage.stage in deciding and stage.final and not (stage.ok and stage.stage == "build"):
            if stage.ok:
                raise _already_ended(run)
            kinds: dict[str, type[TrtllmHpcError]] = {"CANCELLED": RunCancelled, "LOST": JobLost}
            kind = kinds.get(stage.state, BuildFailed if stage.stage == "build" else StartFailed)
            message = f"Run {run.run_id} has no server: stage {stage.stage} {stage.sentence}."
            raise kind(message, hint=f"trtllm-hpc logs {call_name(run)}")


def _already_ended(run: RunPaths) -> StartFailed:
    return StartFailed(f"The server of run {run.run_id} has already ended.", hint="submit the job file again")


def was_submitted(paths: RunPaths) -> bool:
    """Return whether ``submit`` has submitted a job of the run, or one of its scripts has begun."""
    return paths.jobs.exists() or bool(read_events(paths))


def _damage(paths: RunPaths) -> str | None:
    """Return what is wrong with an endpoint file that cannot be read; ``None``: the file is missing."""
    try:
        paths.endpoint.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "is empty, cut short, or does not contain an endpoint"


def _not_ready(paths: RunPaths, endpoint: Endpoint | None, why: str | None, timeout_s: float) -> NotReady:
    within = f" within {timeout_s:g} s" if timeout_s > 0 else ""
    run, hint = f"run {paths.run_id}", f"trtllm-hpc logs {call_name(paths)}"
    if endpoint is not None:
        message = f"The server of {run} at {endpoint.place} (host {endpoint.host}) {why}{within}."
    elif why is not None:
        message = f"The address of the server of {run} is not known: {paths.endpoint} {why}."
        hint = f"trtllm-hpc cancel {call_name(paths)}, and submit the job file again"
    elif was_submitted(paths):
        message = f"R{run[1:]} published no endpoint{within}: its server is not ready."
    else:
        message = f"R{run[1:]} was never submitted, and none of its scripts was started by hand{within}."
        files = (shlex.quote(str(paths.spec)), shlex.quote(str(paths.cluster)))
        hint = f"trtllm-hpc submit {files[0]} --cluster {files[1]}"
    return NotReady(message, hint=hint)
