"""Rank 0's duties: publish the endpoint once the server is ready, and decide when it must stop.

The server's own HTTP endpoint says whether it is ready; log text never does.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.engine_cache.verify import EngineCheck
from trtllm_hpc.runtime.heartbeat import watch_ranks
from trtllm_hpc.runtime.notice import notify
from trtllm_hpc.runtime.probe import Probe
from trtllm_hpc.runtime.records import (
    Endpoint,
    JsonRecord,
    RankRecord,
    StopRequest,
    add_event,
    rank_records,
    read_events,
)
from trtllm_hpc.runtime.server_spec import RankOptions, ServerDriver


@dataclass(frozen=True)
class StopReason:
    """Why the leader stops the server without a request."""

    by: str
    sentence: str
    exit_code: ExitCode
    blames: int | None = None
    """The rank at fault, if there is a fault."""


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

    In a run with a door it tells the supervisor, which publishes the endpoint.
    """

    def __init__(self, paths: RunPaths, options: RankOptions, driver: ServerDriver) -> None:
        self._paths = paths
        self._options = options
        self._driver = driver
        self._server = driver.http()
        self._started = time.monotonic()
        self._started_at = time.time()
        self._is_ready = False
        own = paths.rank_heartbeat(options.step, options.rank)
        self._ranks = watch_ranks(paths, options.step, range(options.world_size), options.hang_seconds, own)
        self._probe: Probe | None = None
        if options.hang_seconds is not None:
            self._probe = Probe(self._server, options.hang_seconds, options.ready_timeout_seconds)

    def tick(self) -> StopReason | None:
        """Publish that the server is ready; returns why it must be stopped, if it must."""
        if (fault := self._lost_rank()) is not None:
            return fault
        if self._is_ready:
            return self._hanging() or self._watch()
        names = self._server.ready_models()
        if names is not None:
            self._is_ready = True
            self._publish(names)
            if self._probe is not None:
                self._probe.begin(names)
            return None
        if time.monotonic() - self._started > self._options.ready_timeout_seconds:
            return self._not_ready_in_time()
        return None

    def withdraw(self) -> None:
        """Take back that the server is ready: from now on requests may be refused."""
        if self._probe is not None:
            self._probe.end()
        with suppress(OSError):  # on a full disk the server must stop all the same
            self._paths.ready_record(self._options.step).unlink(missing_ok=True)

    def suspect(self, *, has_died: bool) -> StopReason | None:
        """Return which rank is at fault if the server does not end, or has died: it is silent, or stopped.

        Args:
            has_died: two missed beats are then enough; peers wait for less than the limit on silence.
        """
        found = {**self._ranks.silent(), **self._ranks.stopped()}
        if has_died:
            found = {**self._ranks.suspects(), **found}
        lost = self._living(found) if found else {}
        return self._blame(lost, "heartbeat") if lost else None

    def _lost_rank(self) -> StopReason | None:
        silent = self._ranks.silent()
        lost = self._living(silent) if silent else {}
        return self._blame(lost, "heartbeat") if lost else None

    def _living(self, found: Mapping[int, str]) -> dict[int, str]:
        """Return those of the ranks that have not ended, which beat no more and end this one anyway."""
        ended = {it.rank for it in rank_records(self._paths, self._options.step) if it.ended_at is not None}
        return {rank: why for rank, why in found.items() if rank not in ended}

    def _hanging(self) -> StopReason | None:
        fault = None if self._probe is None else self._probe.fault
        if fault is None:
            return None
        return self._blame(
            self._ranks.suspects(), "probe", f"{fault}, though the server says that it is ready"
        )

    def _blame(self, found: Mapping[int, str], by: str, what: str | None = None) -> StopReason:
        """Return why the server must end, with the first of the ranks that were found at fault."""
        rank = min(found, default=self._options.rank)
        name = rank_name(self._paths, self._options.step, rank)
        why = found.get(rank) or str(what)
        because = f" ({what})" if what is not None and rank in found else ""
        return StopReason(by, f"{name}: {why}{because}", ExitCode.START, blames=rank)

    def _publish(self, names: list[str]) -> None:
        record = ReadyRecord(models=names, started_at=self._started_at, place=self._driver.place)
        record.write(self._paths.ready_record(self._options.step))
        print(f"ready: {', '.join(names)}", flush=True)

    def _watch(self) -> StopReason | None:
        return None

    def _not_ready_in_time(self) -> StopReason:
        what, limit_s = self._server.not_ready(), self._options.ready_timeout_seconds
        sentence = f"the server was not ready within {limit_s:.0f} s ({what})"
        blamed, suspects = self._options.rank, self._ranks.suspects() or self._missing_ranks()
        if suspects:
            blamed = min(suspects)
            sentence += f"; {rank_name(self._paths, self._options.step, blamed)}: {suspects[blamed]}"
        return StopReason("ready timeout", sentence, ExitCode.READINESS, blames=blamed)

    def _missing_ranks(self) -> dict[int, str]:
        """Return the ranks that have not even begun."""
        ranks = range(self._options.world_size)
        records = {record.rank for record in rank_records(self._paths, self._options.step)}
        return {rank: "it was never started" for rank in ranks if rank not in records}


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

    def tick(self) -> StopReason | None:
        """Do the same, and end a server whose engine turns out to be damaged."""
        fault = self._engine.fault
        return super().tick() if fault is None else self._blame({}, "engine", fault)

    def withdraw(self) -> None:
        """Remove the endpoint; a second time does nothing."""
        if self._is_withdrawn:
            return
        self._is_withdrawn = True
        super().withdraw()
        with suppress(OSError):  # on a full disk the server must stop all the same
            self._paths.endpoint.unlink(missing_ok=True)
            add_event(self._paths, "serve", "server_stop")

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
        tell_ready(self._paths, endpoint)

    def _blame(self, found: Mapping[int, str], by: str, what: str | None = None) -> StopReason:
        stop = super()._blame(found, by, what)
        with suppress(OSError):
            add_event(self._paths, "serve", "server_lost", reason=stop.sentence)
        return stop

    def _watch(self) -> StopReason | None:
        sentence = self._companion.missing()
        if sentence is None:
            return None
        with suppress(OSError):  # on a full disk the server must stop all the same
            StopRequest(by="leader", reason=sentence, requested_at=time.time()).write(
                self._paths.stop_request
            )
            add_event(self._paths, "serve", "companion_missing", reason=sentence)
        return StopReason("leader", sentence, ExitCode.START)

    def _not_ready_in_time(self) -> StopReason:
        stop = super()._not_ready_in_time()
        add_event(self._paths, "serve", "ready_timeout", reason=stop.sentence)
        return stop


def make_leader(paths: RunPaths, options: RankOptions, driver: ServerDriver, job_id: str) -> InstanceLeader:
    """Return what rank 0 needs, in a run with a door or without."""
    if options.instance is None:
        return Leader(paths, options, driver, job_id)
    return InstanceLeader(paths, options, driver)


def tell_ready(paths: RunPaths, endpoint: Endpoint) -> None:
    """Say in the log, and to whom the profile names, that the server is ready."""
    print(f"ready: {', '.join(endpoint.models)} at {endpoint.places}", flush=True)
    notify(paths, "ready", f"ready at {endpoint.place} on {endpoint.host}", http=endpoint.place)


def rank_name(paths: RunPaths, step: str, rank: int) -> str:
    """Return how to name a rank of an instance, with its host if it has a record."""
    record = RankRecord.read(paths.rank_record(step, rank))
    instance = step.partition(".")[2]
    name = f"rank {rank}{f' of instance {instance}' if instance else ''}"
    return name if record is None else f"{name} on {record.host}"


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


class CompanionWatch:
    """Notices that the companion never starts, or that its heartbeat stops.

    Only changes of the file count, by this node's own clock: the clocks of two nodes may differ.

    Args:
        start_s: how long after ``begin`` it may start; ``None``: for ever.
        silence_s: how long it may be silent; ``None``: for ever.
    """

    def __init__(self, paths: RunPaths, start_s: float | None, silence_s: float | None) -> None:
        self._paths = paths
        self._start_s, self._silence_s = start_s, silence_s
        self._begun = 0.0
        self._beat: tuple[int, float] | None = None

    def begin(self) -> None:
        """The server is ready from now on."""
        self._begun = time.monotonic()

    def missing(self) -> str | None:
        """Return a sentence once the companion is missing."""
        now = time.monotonic()
        try:
            changed = self._paths.heartbeat.stat().st_mtime_ns
        except OSError:
            changed = 0  # not there yet; or the file system failed for a moment, which proves nothing
        if changed and (self._beat is None or self._beat[0] != changed):
            self._beat = (changed, now)
        if self._beat is None:
            if self._start_s is not None and now - self._begun > self._start_s:
                return f"no companion came within {self._start_s:.0f} s"
        elif self._silence_s is not None and now - self._beat[1] > self._silence_s:
            return f"the companion gave no sign of life for {self._silence_s:.0f} s"
        return None
