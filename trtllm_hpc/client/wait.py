"""Wait for a run's endpoint, with a time limit."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from trtllm_hpc.client.single_calls import not_ready
from trtllm_hpc.errors import BuildFailed, NotReady, RunCancelled, StartFailed, TrtllmHpcError
from trtllm_hpc.logs.files import stage_end
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths, call_name, read_json
from trtllm_hpc.runtime.records import Endpoint, read_events

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_HEALTH_TIMEOUT_S = 5.0
_SETTLE_S = 2.0
"""The end of a serve stage counts after this time: a job that was submitted again may not have begun yet."""
_DOOR_SETTLE_S = 2.0
"""From an instance's being ready to the door's seeing it, which looks twice a second."""


def wait_for_endpoint(
    paths: RunPaths, timeout_s: float, *, on_wait: Callable[[float], None] | None = None
) -> Endpoint:
    """Return the endpoint of a run, once it is published and answers as ready.

    A ``timeout_s`` of 0 waits only for the moment that the door takes to see a server that is ready.
    ``on_wait`` is called before each pause with the seconds waited so far. Raises BuildFailed, StartFailed or
    RunCancelled if there will be no endpoint; NotReady after ``timeout_s``.
    """
    started = time.monotonic()
    pause_s = _FIRST_PAUSE_S
    while True:
        endpoint = Endpoint.read(paths.endpoint)
        left_s = timeout_s - (time.monotonic() - started)
        limit_s = max(1.0, min(left_s, _HEALTH_TIMEOUT_S))
        why = _damage(paths) if endpoint is None else not_ready(endpoint, limit_s)
        if endpoint is not None and why is None:
            return endpoint
        end = serve_end(paths)
        if end is not None and time.monotonic() - started >= min(timeout_s, _SETTLE_S):
            raise end
        limit_s = timeout_s if endpoint is None else max(timeout_s, _DOOR_SETTLE_S)
        left_s = limit_s - (time.monotonic() - started)
        if left_s <= 0:
            raise _not_ready(paths, endpoint, why, timeout_s)
        if on_wait is not None:
            on_wait(time.monotonic() - started)
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def serve_end(paths: RunPaths) -> TrtllmHpcError | None:
    """Return the error that says why there will be no server; ``None`` while one may still become ready.

    There will be none if, by their events, the serve stage has ended or the build before it has failed, and
    no other job waits to serve (``serve.renew``).
    """
    hint = f"trtllm-hpc logs {call_name(paths)}"
    run = RunSnapshot(paths)
    end, renewal = stage_end(run, "serve"), run.renewal
    if end is not None and renewal is not None:
        has_begun = renewal.job_id != end.data.get("job_id")  # though it has not said so yet
        if has_begun or renewal.next_job_id is not None:
            return None  # another job serves next
    if end is None:
        build = None if run.events("serve") else stage_end(run, "build")
        if build is not None and (code := build.data.get("exit_code")) != 0:
            how = "was cancelled" if code is None else f"failed with exit code {code}"
            sentence = f"The build of run {paths.run_id} {how}, so there will be no server."
            return (RunCancelled if code is None else BuildFailed)(sentence, hint=hint)
        return None
    code = end.data.get("exit_code")
    if code == 0:
        return StartFailed(
            f"The server of run {paths.run_id} has already ended.", hint="submit the job file again"
        )
    how = "was cancelled" if code is None else f"ended with exit code {code}"
    sentence = f"The serve stage of run {paths.run_id} {how}, so there is no server."
    return (RunCancelled if code is None else StartFailed)(sentence, hint=hint)


def was_submitted(paths: RunPaths) -> bool:
    """Return whether ``submit`` has submitted a job of the run, or one of its scripts has begun."""
    return paths.jobs.exists() or bool(read_events(paths))


def _damage(paths: RunPaths) -> str | None:
    """Return what is wrong with a published endpoint that cannot be read; ``None``: there is no such file."""
    try:
        return None if read_json(paths.endpoint) is None else "does not hold an endpoint"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return "is cut short, or is not JSON" if getattr(error, "doc", "?") else "is empty"


def _not_ready(paths: RunPaths, endpoint: Endpoint | None, why: str | None, timeout_s: float) -> NotReady:
    within = f" within {timeout_s:g} s" if timeout_s > 0 else ""
    hint = f"trtllm-hpc logs {call_name(paths)}"
    if endpoint is not None:
        message = (
            f"The server of run {paths.run_id} at {endpoint.place} (host {endpoint.host}) {why}{within}."
        )
    elif why is not None:
        message = f"Where the server of run {paths.run_id} answers is not known: {paths.endpoint} {why}."
        hint = f"trtllm-hpc cancel {call_name(paths)}, and submit the job file again"
    elif was_submitted(paths):
        message = f"Run {paths.run_id} published no endpoint{within}: its server is not ready."
    else:
        message = f"Run {paths.run_id} was never submitted"
        message += f", and none of its scripts was started by hand{within}." if timeout_s > 0 else "."
        files = (shlex.quote(str(paths.spec)), shlex.quote(str(paths.cluster)))
        hint = f"trtllm-hpc submit {files[0]} --cluster {files[1]}"
    return NotReady(message, hint=hint)
