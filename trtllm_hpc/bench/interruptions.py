"""What interrupts a measurement: a server that is away for a while, or the end of the companion.

With ``serve.renew`` another job serves after the time limit; behind a proxy an instance that died is started
again. What was measured in between says nothing about the server. A companion may be killed, run into its
time limit, or lose its server between two levels: the next attempt keeps the levels that it measured whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile

from trtllm_hpc.bench.passes import PassOutcome
from trtllm_hpc.bench.records import RequestRecord, read_records
from trtllm_hpc.bench.results import LevelResult, MeasurementSummary, levels_of, read_measurement
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.paths import MeasurementPaths, RunPaths, read_json
from trtllm_hpc.runtime.heartbeat import TROUBLE
from trtllm_hpc.runtime.records import Endpoint, read_events

MOST_CUTS = 3
"""So often a pass is measured again; a load that ends the server each time would do it for ever."""
_SETTLE_S = 5.0
"""For the death of a server to show in the run's files, after the failures that it caused."""
_TICK_S = 0.2

Follow = Callable[[], Endpoint]
"""Waits until the server is ready, and returns where; raises TrtllmHpcError if it does not come back."""


@dataclass(frozen=True)
class ServerIdentity:
    """Which server answers; equal as long as it has not been away."""

    job_id: str | None
    """``None``: no endpoint is published."""
    ready_at: float
    restarts: tuple[int, ...]
    """Restarts of each instance behind the proxy."""
    proxy_restarts: int = 0
    """How often the proxy was started again, which cuts every open request."""

    @classmethod
    def of(cls, paths: RunPaths) -> ServerIdentity:
        """Return the server that the run's files name now."""
        endpoint = Endpoint.read(paths.endpoint)
        try:
            restarts = tuple(int(one["restarts"]) for one in read_json(paths.instances) or [])
        except (OSError, ValueError, TypeError, KeyError):
            restarts = ()
        proxies = sum(event.name == "proxy_restarted" for event in read_events(paths, "serve"))
        job_id, ready_at = (None, 0.0) if endpoint is None else (endpoint.job_id, endpoint.ready_at)
        return cls(job_id, ready_at, restarts, proxies)

    def was_replaced_by(self, now: ServerIdentity) -> bool:
        """Return whether every instance, or the proxy before them, has been away between this and ``now``."""
        if replace(self, restarts=()) != replace(now, restarts=()):
            return True
        pairs = list(zip(self.restarts, now.restarts, strict=False))
        return bool(pairs) and all(before < after for before, after in pairs)


def was_cut(paths: RunPaths, begun_at: ServerIdentity, outcome: PassOutcome) -> bool:
    """Return whether a pass failed because the server was away.

    Waits a moment if the pass ended early, or if requests lost their connection: the supervisor looks once a
    second whether the proxy runs.
    """
    ended_early = outcome.gone or outcome.failures is not None
    if outcome.interrupted or not (ended_early or any(not record.ok for record in outcome.records)):
        return False
    has_lost = any(record.status == "UNAVAILABLE" for record in outcome.records)
    deadline = time.monotonic() + (_SETTLE_S if ended_early or has_lost else 0.0)
    while not begun_at.was_replaced_by(ServerIdentity.of(paths)):
        if time.monotonic() > deadline:
            return outcome.gone  # it may not know yet itself, as after the loss of its node
        time.sleep(_TICK_S)
    return True


def ended_parts(paths: RunPaths) -> list[str]:
    """Return which parts of the run's server ended or stood still while it served, when and why, in order."""
    found = []
    for event in read_events(paths, "serve"):
        why, then = event.data.get("why"), event.data.get("then", "it is started again")
        at = time.strftime("%H:%M:%S", time.localtime(event.time))
        if event.name == "instance_end":
            found.append(f"at {at} instance {event.data.get('instance')}: {why}; {then}")
        elif event.name in ("front_restarted", "proxy_restarted"):
            found.append(f"at {at} {why}; {then}")
        elif event.name == TROUBLE and why is not None:
            found.append(f"at {at} {why}")
    return found


def read_earlier(
    files: MeasurementPaths, settings: Benchmark
) -> tuple[MeasurementSummary, list[RequestRecord]] | None:
    """Return an earlier attempt's levels that were measured whole with the same settings, and their records.

    ``None`` without any, and where nothing is missing. A search decides by each level what comes next, and
    begins again.
    """
    try:
        measured, records = read_measurement(files.summary), read_records(files.requests)
    except (RunNotFound, OSError, ValueError, TypeError):
        return None
    if settings.find_max or measured.settings != settings.model_dump(mode="json"):
        return None

    def is_whole(level: LevelResult) -> bool:
        return len(level.passes) == settings.repeats and all(it.verdict.valid for it in level.passes)

    levels = list(takewhile(is_whole, measured.levels))
    kept = [it for it in records if it.level < len(levels)]
    if not kept or len(levels) >= len(levels_of(settings)):
        return None
    return replace(measured, levels=levels), kept
