"""Rank 0's duties: publish the endpoint when it is true, and know when to stop."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.readiness import models, ready_models
from trtllm_hpc.runtime.records import Endpoint, StopRequest, add_event, read_events


@dataclass(frozen=True)
class Complaint:
    """Why the leader must stop though nobody asked."""

    by: str
    sentence: str
    exit_code: ExitCode


class Leader:
    """Watches one server from its start; ``tick`` is called a few times a second."""

    def __init__(
        self,
        paths: RunPaths,
        *,
        job_id: str,
        ready_timeout_s: float,
        companion_start_s: float | None,
        companion_silence_s: float | None,
    ) -> None:
        self._paths = paths
        self._job_id = job_id
        self._address = os.environ["TRTLLM_HPC_ADDRESS"]
        self._http, self._grpc, self._metrics = (
            int(os.environ[f"TRTLLM_HPC_{name}_PORT"]) for name in ("HTTP", "GRPC", "METRICS")
        )
        self._started = time.monotonic()
        self._started_at = time.time()
        self._ready_timeout_s = ready_timeout_s
        self._start_s = companion_start_s
        self._silence_s = companion_silence_s
        self._published = False
        self._ready = 0.0
        self._beat: tuple[int, float] | None = None
        add_event(paths, "serve", "server_start", host=socket.gethostname())

    def tick(self) -> Complaint | None:
        """Do what is due; a complaint means that the server must be stopped."""
        if self._published:
            return self._listen_for_companion()
        names = ready_models(self._address, self._http)
        if names is not None:
            self._publish(names)
            return None
        if time.monotonic() - self._started > self._ready_timeout_s:
            return self._too_late()
        return None

    def withdraw(self) -> None:
        """Take the endpoint back: from now on requests may be refused."""
        with suppress(OSError):  # on a full disk the server must stop all the same
            self._paths.endpoint.unlink(missing_ok=True)
            add_event(self._paths, "serve", "server_stop")

    def _publish(self, names: list[str]) -> None:
        ready_at = time.time()
        endpoint = Endpoint(
            job_id=self._job_id,
            host=socket.gethostname(),
            address=self._address,
            http_port=self._http,
            grpc_port=self._grpc,
            metrics_port=self._metrics,
            models=names,
            ready_at=ready_at,
            phases_s=self._phases(ready_at),
        )
        endpoint.write(self._paths.endpoint)
        self._published = True
        self._ready = time.monotonic()
        add_event(self._paths, "serve", "ready", **asdict(endpoint))
        print(f"ready: {', '.join(names)} at http {endpoint.http}, grpc {endpoint.grpc}", flush=True)

    def _phases(self, ready_at: float) -> dict[str, float]:
        """Seconds from mark to mark, since the batch script's first line."""
        # The last of each: an earlier attempt at this stage may stand before it.
        times = {event.name: event.time for event in read_events(self._paths, "serve")}
        begin = times.get("stage_begin", self._started_at)
        checked = times.get("preflight_ok", begin)
        marks = {
            "preflight": checked - begin,
            "launch": self._started_at - checked,
            # Triton opens its ports only when every model is loaded.
            "load": ready_at - self._started_at,
            "total": ready_at - begin,
        }
        return {name: round(seconds, 3) for name, seconds in marks.items()}

    def _too_late(self) -> Complaint:
        states = models(self._address, self._http)
        waiting = sorted(name for name, state in states.items() if state != "READY")
        what = f"not READY: {', '.join(waiting)}" if waiting else "the server does not answer"
        sentence = f"the server was not ready within {self._ready_timeout_s:.0f} s ({what})"
        add_event(self._paths, "serve", "ready_timeout", reason=sentence)
        return Complaint("ready timeout", sentence, ExitCode.READINESS)

    def _listen_for_companion(self) -> Complaint | None:
        """Stop when the companion never comes, or gives no sign of life any more.

        Only changes are looked at, with this node's own clock: the clocks of
        two nodes may differ.
        """
        now = time.monotonic()
        try:
            changed = self._paths.heartbeat.stat().st_mtime_ns
        except OSError:
            changed = 0  # not there yet; or a file system that hiccups, which is no sign either way
        if changed and (self._beat is None or self._beat[0] != changed):
            self._beat = (changed, now)
        if self._beat is None:
            if self._start_s is not None and now - self._ready > self._start_s:
                return self._stop_for(f"no companion came within {self._start_s:.0f} s")
        elif self._silence_s is not None and now - self._beat[1] > self._silence_s:
            return self._stop_for(f"the companion gave no sign of life for {self._silence_s:.0f} s")
        return None

    def _stop_for(self, sentence: str) -> Complaint:
        with suppress(OSError):  # on a full disk the server must stop all the same
            StopRequest(by="leader", reason=sentence, requested_at=time.time()).write(
                self._paths.stop_request
            )
            add_event(self._paths, "serve", "companion_missing", reason=sentence)
        return Complaint("leader", sentence, ExitCode.START)
