"""Rank 0's duties: publish the endpoint once the server is ready, and watch whether it serves.

The server's own HTTP endpoint says whether it is ready; log text never does.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.ending import ServerFaults
from trtllm_hpc.runtime.engine_cache.verify import EngineCheck
from trtllm_hpc.runtime.notice import notify
from trtllm_hpc.runtime.probe import Probe
from trtllm_hpc.runtime.records import (
    Endpoint,
    JsonRecord,
    StopRequest,
    add_event,
    read_events,
    try_event,
)
from trtllm_hpc.runtime.server_spec import RankOptions, ServerDriver
from trtllm_hpc.runtime.stop import CompanionWatch


@dataclass(frozen=True)
class ReadyRecord(JsonRecord):
    """An instance is ready."""

    models: list[str]
    started_at: float
    """When its leader started its server, in seconds since the epoch."""
    place: str | None = None
    """``address:port`` of a server with OpenAI's protocol."""


class InstanceLeader:
    """Waits until one server is ready, and watches it. ``tick`` is called a few times a second.

    In a run with a door the record of its readiness is for the supervisor, which publishes the endpoint.
    """

    def __init__(self, paths: RunPaths, options: RankOptions, driver: ServerDriver) -> None:
        self._paths = paths
        self._options = options
        self._driver = driver
        self._server = driver.http()
        self._started = time.monotonic()
        self._started_at = time.time()
        self._is_ready = False
        self._probe: Probe | None = None
        if options.hang_seconds is not None:
            self._probe = Probe(self._server, options.hang_seconds, options.ready_timeout_seconds)

    def tick(self) -> ServerFaults:
        """Publish that the server is ready, once it is; return what is wrong with it."""
        if self._is_ready:
            return ServerFaults(hang=None if self._probe is None else self._probe.fault)
        names = self._server.ready_models()
        if names is not None:
            self._is_ready = True
            self._publish(names)
            if self._probe is not None:
                self._probe.begin(names)
        elif time.monotonic() - self._started > (limit_s := self._options.ready_timeout_seconds):
            return ServerFaults(not_ready=f"{limit_s:.0f} s ({self._server.not_ready()})")
        return ServerFaults()

    def note(self, event: str, reason: str) -> None:
        """Record why the server ends; behind a door the supervisor does."""

    def withdraw(self) -> None:
        """Take back that the server is ready: from now on requests may be refused."""
        if self._probe is not None:
            self._probe.end()
        with suppress(OSError):  # on a full disk the server must stop all the same
            self._paths.ready_record(self._options.step).unlink(missing_ok=True)

    def _publish(self, names: list[str]) -> None:
        record = ReadyRecord(models=names, started_at=self._started_at, place=self._driver.place)
        record.write(self._paths.ready_record(self._options.step))
        print(f"ready: {', '.join(names)}", flush=True)


class Leader(InstanceLeader):
    """The same in a run without a door: publishes the endpoint, and watches the companion."""

    def __init__(self, paths: RunPaths, options: RankOptions, driver: ServerDriver, job_id: str) -> None:
        self._job_id = job_id
        self._is_withdrawn = False
        super().__init__(paths, options, driver)
        self._companion = CompanionWatch(
            paths, options.companion_start_seconds, options.companion_silence_seconds
        )
        self._engine = EngineCheck(paths)
        add_event(paths, "serve", "server_start", host=socket.gethostname())

    def tick(self) -> ServerFaults:
        """Do the same, and look at the engine and at the companion."""
        if self._engine.fault is not None:
            return ServerFaults(engine=self._engine.fault)
        faults = super().tick()
        return replace(faults, companion=self._companion.missing()) if self._is_ready else faults

    def note(self, event: str, reason: str) -> None:
        """Record why the server ends, also for a companion that may come back."""
        if event == "companion_missing":
            request = StopRequest(by="leader", reason=reason, requested_at=time.time())
            with suppress(OSError):  # on a full disk the server must stop all the same
                request.write(self._paths.stop_request)
        try_event(self._paths, "serve", event, reason=reason)

    def withdraw(self) -> None:
        """Remove the endpoint; a second time does nothing."""
        if self._is_withdrawn:
            return
        self._is_withdrawn = True
        super().withdraw()
        with suppress(OSError):  # on a full disk the server must stop all the same
            self._paths.endpoint.unlink(missing_ok=True)
        try_event(self._paths, "serve", "server_stop")

    def _publish(self, names: list[str]) -> None:
        ready_at = time.time()
        endpoint = Endpoint(
            job_id=self._job_id,
            host=socket.gethostname(),
            address=os.environ["TRTLLM_HPC_ADDRESS"],
            models=names,
            ready_at=ready_at,
            phases_s=phases(self._paths, self._started_at, ready_at),
            **self._driver.endpoint(),
        )
        endpoint.write(self._paths.endpoint)
        self._companion.begin()
        add_event(self._paths, "serve", "ready", **asdict(endpoint))
        announce(self._paths, endpoint)


def make_leader(paths: RunPaths, options: RankOptions, driver: ServerDriver, job_id: str) -> InstanceLeader:
    """Return what rank 0 needs, in a run with a door or without."""
    if options.instance is None:
        return Leader(paths, options, driver, job_id)
    return InstanceLeader(paths, options, driver)


def announce(paths: RunPaths, endpoint: Endpoint) -> None:
    """Log that the server is ready, and call the webhook."""
    print(f"ready: {', '.join(endpoint.models)} at {endpoint.places}", flush=True)
    notify(paths, "ready", f"ready at {endpoint.place} on {endpoint.host}", http=endpoint.place)


def phases(paths: RunPaths, started_at: float, ready_at: float) -> dict[str, float]:
    """Return the seconds of each phase, from the batch script's first line on.

    Args:
        started_at: when the server was started, in seconds since the epoch, as ``ready_at``.
    """
    # The last of each: events of an earlier attempt at this stage may come first.
    times = {event.name: event.time for event in read_events(paths, "serve")}
    begin = times.get("stage_begin", started_at)
    checked = times.get("preflight_ok", begin)
    marks = {
        "preflight": checked - begin,
        "launch": started_at - checked,
        # Triton opens its ports only when every model is loaded.
        "load": ready_at - started_at,
        "total": ready_at - begin,
    }
    return {name: round(seconds, 3) for name, seconds in marks.items()}
