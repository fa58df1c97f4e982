"""Rank 0's duties: record that the server is ready, and watch whether it serves.

The server's own HTTP endpoint says whether it is ready; log text never does.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.blame import rank_name
from trtllm_hpc.runtime.ending import Observed
from trtllm_hpc.runtime.heartbeat import SILENT, Troubles, watch_ranks
from trtllm_hpc.runtime.probe import Probe
from trtllm_hpc.runtime.process import start_ticks
from trtllm_hpc.runtime.proxy import SOCKETS_VARIABLE
from trtllm_hpc.runtime.records import JsonRecord, rank_records, try_event
from trtllm_hpc.runtime.server_spec import RankOptions
from trtllm_hpc.runtime.servers import endpoint_of
from trtllm_hpc.runtime.stop import SUPERVISOR, SUPERVISOR_VARIABLE

_NO_SIGN = "the supervisor of the run gives no sign of life: it may be stopped (SIGSTOP)"


@dataclass(frozen=True)
class ReadyRecord(JsonRecord):
    """An instance is ready."""

    models: list[str]
    started_at: float
    """When its leader started its server, in seconds since the epoch."""
    endpoint: dict[str, Any] = field(default_factory=dict)
    """Without a proxy: the fields of :class:`~trtllm_hpc.runtime.records.Endpoint` that say where the server
    answers."""


class Leader:
    """Records for the run's supervisor that the server is ready, and watches it; ``tick`` is called often."""

    def __init__(self, paths: RunPaths, options: RankOptions) -> None:
        own = paths.rank_heartbeat(options.step, options.rank)
        self._supervisor = watch_ranks(paths, SUPERVISOR, range(1), options.hang_seconds, own)
        self._paths, self._options = paths, options
        self._troubles = Troubles(paths, "serve")
        self._ready_record = paths.ready_record(options.step)
        self._server = endpoint_of(options)
        self._started, self._started_at = time.monotonic(), time.time()
        self._is_ready = False
        self._probe: Probe | None = None
        if options.hang_seconds is not None:
            self._probe = Probe(self._server, options.hang_seconds, options.ready_timeout_seconds)

    def tick(self, seen: Observed) -> Observed:
        """Record that the server is ready, once it is; add what is wrong with it to what rank 0 observes."""
        if (why := self.supervisor_fault(seen.ranks.stopped)) is not None:
            return replace(seen, supervisor=why)
        if self._is_ready:
            return replace(seen, hang=None if self._probe is None else self._probe.fault)
        names, limit_s = self._server.ready_models(), self._options.ready_timeout_seconds
        if names is not None:
            self._is_ready = True
            self._record(names)
            if self._probe is not None:
                self._probe.begin(names)
        elif time.monotonic() - self._started > limit_s:
            return replace(seen, not_ready=f"{limit_s:.0f} s ({self._server.not_ready()})")
        return seen

    def withdraw(self) -> None:
        """Take back that the server is ready: from now on requests may be refused."""
        if self._probe is not None:
            self._probe.end()
        with suppress(OSError):  # on a full disk the server must stop all the same
            self._ready_record.unlink(missing_ok=True)

    def _record(self, names: list[str]) -> None:
        endpoint: dict[str, Any] = {}
        if SOCKETS_VARIABLE not in os.environ:
            where = {"host": socket.gethostname(), "address": os.environ["TRTLLM_HPC_ADDRESS"]}
            endpoint = {**where, **self._server.endpoint()}
        ReadyRecord(names, self._started_at, endpoint).write(self._ready_record)
        print(f"ready: {', '.join(names)}", flush=True)

    def supervisor_fault(self, stopped: Mapping[int, str]) -> str | None:
        """Note stopped ranks and a silent supervisor; return a sentence once that must be given up."""
        seen, step = self._supervisor.look(), self._options.step
        records = rank_records(self._paths, step) if stopped else []
        names = {rank: rank_name(records, step, rank) for rank in stopped}
        faults = {f"{step}/{rank}": f"{names[rank]}: {why}" for rank, why in stopped.items()}
        # A supervisor with a stopped child is a suspect, too, and lives.
        if SILENT in seen.suspects.get(0, ""):
            faults[SUPERVISOR] = _NO_SIGN
        self._troubles.note(faults)
        return _NO_SIGN if seen.silent else None

    def give_up_supervisor(self) -> None:
        """Record the end of the run, and kill the supervisor on this node: then the batch script goes on."""
        try_event(self._paths, "serve", "failed", reason=_NO_SIGN)
        pid, _, ticks = os.environ.get(SUPERVISOR_VARIABLE, "").partition(" ")
        if pid and str(start_ticks(int(pid))) == ticks:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
