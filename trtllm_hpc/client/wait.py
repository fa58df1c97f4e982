"""Waiting for a run's endpoint, always with an end."""

from __future__ import annotations

import time
from collections.abc import Callable

from trtllm_hpc.client.http import is_ready
from trtllm_hpc.errors import NotReady, StartFailed
from trtllm_hpc.logs.state import stage_end
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Endpoint, RankRecord

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_HEALTH_TIMEOUT_S = 5.0
_SETTLE_S = 2.0
"""A serve job that was submitted again may not have written its beginning yet: an end counts after this."""


def wait_for_endpoint(
    paths: RunPaths, timeout_s: float, *, on_wait: Callable[[float], None] | None = None
) -> Endpoint:
    """The endpoint of a run, once it is published and answers as ready.

    Args:
        timeout_s: 0 asks once, without waiting.
        on_wait: called before each pause with the seconds waited so far.

    Raises:
        StartFailed: the serve stage has ended, so that no endpoint will come.
        NotReady: no ready endpoint within ``timeout_s``.
    """
    started = time.monotonic()
    pause_s = _FIRST_PAUSE_S
    while True:
        endpoint = Endpoint.read(paths.endpoint)
        left_s = timeout_s - (time.monotonic() - started)
        if endpoint is not None and is_ready(endpoint, max(1.0, min(left_s, _HEALTH_TIMEOUT_S))):
            return endpoint
        end = serve_end(paths)
        if end is not None and time.monotonic() - started >= min(timeout_s, _SETTLE_S):
            raise StartFailed(end, hint=f"trtllm-hpc logs {paths.run_id}")
        left_s = timeout_s - (time.monotonic() - started)
        if left_s <= 0:
            raise _not_ready(paths, endpoint, timeout_s)
        if on_wait is not None:
            on_wait(time.monotonic() - started)
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def serve_end(paths: RunPaths) -> str | None:
    """One sentence on how the serve stage ended; ``None`` while it may still become ready.

    It has ended when its events say so, or when every rank of the serve step
    says that it has ended.
    """
    end = stage_end(paths, "serve")
    if end is None:
        return _ranks_end(paths)
    code = end.data.get("exit_code")
    if code == 0:
        return f"The server of run {paths.run_id} has already ended; submit the job file again."
    how = "was cancelled" if code is None else f"ended with exit code {code}"
    return f"The serve stage of run {paths.run_id} {how}: there is no server to ask."


def _ranks_end(paths: RunPaths) -> str | None:
    first = RankRecord.read(paths.rank_record("serve", 0))
    if first is None:
        return None
    records = [RankRecord.read(paths.rank_record("serve", rank)) for rank in range(first.world_size)]
    ended = [record for record in records if record is not None and record.ended_at is not None]
    if len(ended) < len(records):
        return None
    codes = ", ".join(f"{record.rank}: {record.exit_code}" for record in ended)
    return f"Every rank of run {paths.run_id} has ended (exit code by rank: {codes})."


def _not_ready(paths: RunPaths, endpoint: Endpoint | None, timeout_s: float) -> NotReady:
    within = f" within {timeout_s:g} s" if timeout_s > 0 else ""
    if endpoint is None:
        message = f"Run {paths.run_id} published no endpoint{within}: its server is not ready."
    else:
        message = (
            f"The server of run {paths.run_id} at {endpoint.http} (host {endpoint.host}) "
            f"did not answer as ready{within}."
        )
    return NotReady(message, hint=f"trtllm-hpc logs {paths.run_id}")
