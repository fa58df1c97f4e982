"""A server that is away for a while during a measurement, and then back, perhaps elsewhere.

With ``serve.renew`` another job serves after the time limit; behind a door an instance that died is started
again. What was measured in between says nothing about the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from trtllm_hpc.bench.passes import PassOutcome
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.records import Endpoint

MOST_CUTS = 3
"""So often a pass is measured again; a load that ends the server each time would do it for ever."""
_SETTLE_S = 5.0
"""For the death of a server to show in the run's files, after the failures that it caused."""
_TICK_S = 0.2

Follow = Callable[[], Endpoint]
"""Waits until the server is ready, and returns where; raises TrtllmHpcError if it does not come back."""


@dataclass(frozen=True)
class Place:
    """Which server answers; two are the same as long as it has not been away."""

    job_id: str | None
    """``None``: none is published."""
    ready_at: float
    restarts: tuple[int, ...]
    """Of each instance behind the door."""

    @classmethod
    def of(cls, paths: RunPaths) -> Place:
        """Return what the run's files say now."""
        endpoint = Endpoint.read(paths.endpoint)
        try:
            restarts = tuple(int(one["restarts"]) for one in read_json(paths.instances) or [])
        except (OSError, ValueError, TypeError, KeyError):
            restarts = ()
        if endpoint is None:
            return cls(None, 0.0, restarts)
        return cls(endpoint.job_id, endpoint.ready_at, restarts)

    def was_left(self, now: Place) -> bool:
        """Return whether every instance has been away since."""
        if (self.job_id, self.ready_at) != (now.job_id, now.ready_at):
            return True
        pairs = list(zip(self.restarts, now.restarts, strict=False))
        return bool(pairs) and all(before < after for before, after in pairs)


def was_cut(paths: RunPaths, begun_at: Place, outcome: PassOutcome) -> bool:
    """Return whether a pass failed because the server was away; waits a moment if it ended early."""
    ended_early = outcome.gone or outcome.failures is not None
    if outcome.interrupted or not (ended_early or any(not record.ok for record in outcome.records)):
        return False
    deadline = time.monotonic() + (_SETTLE_S if ended_early else 0.0)
    while not begun_at.was_left(Place.of(paths)):
        if time.monotonic() > deadline:
            return outcome.gone  # it may not know yet itself, as after the loss of its node
        time.sleep(_TICK_S)
    return True
