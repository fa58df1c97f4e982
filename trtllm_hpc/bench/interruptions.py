"""Interruptions of a measurement: the server is away for a while, or the companion ends.

With ``serve.renew`` another job takes over after the time limit, and behind a proxy dead instances restart.
Figures from the gap do not describe the server, so the pass is repeated. A companion may be killed, run into
its time limit, or lose its server: the next attempt keeps the complete levels of the earlier one.
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
"""Most repeats of a pass; without a limit, a load that kills the server would be repeated for ever."""
_SETTLE_S = 5.0
"""Time after failed requests until the run's files show the death of the server."""
_TICK_S = 0.2

Follow = Callable[[], Endpoint]
"""Waits for the server and returns its endpoint; raises TrtllmHpcError if the server does not come back."""


@dataclass(frozen=True)
class ServerIdentity:
    """The identity of the server that answers; it changes when the server was away."""

    job_id: str | None
    """Job of the published endpoint; ``None`` without an endpoint."""
    ready_at: float
    restarts: tuple[int, ...]
    """Restarts of each instance behind the proxy."""
    proxy_restarts: int = 0
    """Restarts of the proxy, each of which breaks all open requests."""

    @classmethod
    def of(cls, paths: RunPaths) -> ServerIdentity:
        """Return the identity of the server in the run's files."""
        endpoint = Endpoint.read(paths.endpoint)
        try:
            restarts = tuple(int(instance["restarts"]) for instance in read_json(paths.instances) or [])
        except (OSError, ValueError, TypeError, KeyError):
            restarts = ()
        proxies = sum(event.name == "proxy_restarted" for event in read_events(paths, "serve"))
        job_id, ready_at = (None, 0.0) if endpoint is None else (endpoint.job_id, endpoint.ready_at)
        return cls(job_id, ready_at, restarts, proxies)

    def was_replaced_by(self, now: ServerIdentity) -> bool:
        """Return whether the proxy, or every instance, was away between this identity and ``now``."""
        if replace(self, restarts=()) != replace(now, restarts=()):
            return True
        pairs = list(zip(self.restarts, now.restarts, strict=False))
        return bool(pairs) and all(before < after for before, after in pairs)


def was_cut(paths: RunPaths, begun_at: ServerIdentity, outcome: PassOutcome) -> bool:
    """Return whether a pass failed because the server was away.

    If the pass ended early or requests lost their connection, wait for the run's files, because the
    supervisor checks the proxy only once a second.
    """
    ended_early = outcome.gone or outcome.failures is not None
    if outcome.interrupted or not (ended_early or any(not record.ok for record in outcome.records)):
        return False
    has_lost = any(record.status == "UNAVAILABLE" for record in outcome.records)
    deadline = time.monotonic() + (_SETTLE_S if ended_early or has_lost else 0.0)
    while not begun_at.was_replaced_by(ServerIdentity.of(paths)):
        if time.monotonic() > deadline:
            return outcome.gone  # the run's files may still lack the event, as after the loss of a node
        time.sleep(_TICK_S)
    return True


def ended_parts(paths: RunPaths) -> list[str]:
    """Return a line for each part of the run's server that ended or hung while serving, in order of time."""
    lines = []
    for event in read_events(paths, "serve"):
        why, then = event.data.get("why"), event.data.get("then", "it is started again")
        at = time.strftime("%H:%M:%S", time.localtime(event.time))
        if event.name == "instance_end":
            lines.append(f"at {at} instance {event.data.get('instance')}: {why}; {then}")
        elif event.name in ("front_restarted", "proxy_restarted"):
            lines.append(f"at {at} {why}; {then}")
        elif event.name == TROUBLE and why is not None:
            lines.append(f"at {at} {why}")
    return lines


def read_earlier(
    files: MeasurementPaths, settings: Benchmark
) -> tuple[MeasurementSummary, list[RequestRecord]] | None:
    """Return the complete levels of an earlier attempt with the same settings, and their records.

    Return ``None`` if there are none, or if no level is missing. A search always begins again, because each
    level decides the next.
    """
    try:
        measured, records = read_measurement(files.summary), read_records(files.requests)
    except (RunNotFound, OSError, ValueError, TypeError):
        return None
    if settings.find_max or measured.settings != settings.model_dump(mode="json"):
        return None

    def is_whole(level: LevelResult) -> bool:
        return len(level.passes) == settings.repeats and all(one.verdict.valid for one in level.passes)

    levels = list(takewhile(is_whole, measured.levels))
    kept = [record for record in records if record.level < len(levels)]
    if not kept or len(levels) >= len(levels_of(settings)):
        return None
    return replace(measured, levels=levels), kept
