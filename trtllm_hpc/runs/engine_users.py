"""Whether a run still needs the engine that it is registered for."""

from __future__ import annotations

import time
from functools import lru_cache

from trtllm_hpc.errors import TrtllmHpcError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.status import RunState, run_status
from trtllm_hpc.runtime.engine_cache.cache import Use

_CREATION_S = 3_600.0
"""How long a registered run may have no folder: it is registered before its folder is written."""

_FOREIGN_S = 30 * 86_400.0
"""How long a run counts as active if we may not read its folder."""

_RENDERED_S = 7 * 86_400.0
"""How long a run that was never submitted keeps its engine."""


def is_active(use: Use) -> str | None:
    """Return why a registered use still counts; ``None`` if it does not."""
    paths = RunPaths(use.run)
    try:
        created_at = paths.plan.stat().st_mtime
    except PermissionError:
        return f"is used by {use.run}, which belongs to another user" if use.age_s < _FOREIGN_S else None
    except OSError:
        return f"is registered by {use.run}, which is being created" if use.age_s < _CREATION_S else None
    return _of_run(str(paths.folder), created_at)


@lru_cache
def _of_run(folder: str, created_at: float) -> str | None:
    """Cached, so that Slurm is queried once for each run, however many outputs it uses."""
    paths = RunPaths(folder)
    try:
        status = run_status(paths)
    except TrtllmHpcError as error:
        return f"is used by the run {paths.run_id}, which may be active ({error.message})"
    if status.state is RunState.RENDERED:
        fresh = time.time() - created_at < _RENDERED_S
        return f"waits for the run {paths.run_id}, which is rendered and not submitted" if fresh else None
    busy = any(not stage.final and stage.state != "NOT SUBMITTED" for stage in status.stages)
    return f"is used by the run {paths.run_id}, which is {status.state.value}" if busy else None
