"""Rank 0's duties: publish the endpoint once the server is ready, and decide when it must stop.

The server's own HTTP endpoint says whether it is ready; log text never does.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Endpoint, StopRequest, add_event, read_events

_TIMEOUT_S = 2.0
"""Limit on each question to the server."""


@dataclass(frozen=True)
class StopReason:
    """Why the leader stops the server without a request."""

    by: str
    sentence: str
    exit_code: ExitCode


@dataclass(frozen=True)
class RankOptions:
    """The options that ``rank.sh`` passes."""

    rank: int
    world_size: int
    ranks_per_node: int
    prefix: str
    """Prefix of this rank's shared memory and scratch folder, with job id and rank."""
    scratch: Path
    ready_timeout_seconds: float
    companion_start_seconds: float | None
    companion_silence_seconds: float | None
    server: str
    launcher: str | None
    """Program that starts the server and joins the ranks, e.g. ``trtllm-llmapi-launch``."""
    server_arguments: list[str]


class Leader:
    """Watches one server from its start. ``tick`` is called a few times a second."""

    def __init__(self, paths: RunPaths, options: RankOptions, job_id: str) -> None:
        self._paths = paths
        self._options = options
        self._job_id = job_id
        self._address = os.environ["TRTLLM_HPC_ADDRESS"]
        self._http, self._grpc, self._metrics = (
            int(os.environ[f"TRTLLM_HPC_{name}_PORT"]) for name in ("HTTP", "GRPC", "METRICS")
        )
        self._started = time.monotonic()
        self._started_at = time.time()
        self._published = False
        self._ready = 0.0
        self._beat: tuple[int, float] | None = None
        add_event(paths, "serve", "server_start", host=socket.gethostname())

    def tick(self) -> StopReason | None:
        """Publish the endpoint or watch the companion; returns why the server must be stopped, if it must."""
        if self._published:
            return self._check_companion()
        names = ready_models(self._address, self._http)
        if names is not None:
            self._publish(names)
            return None
        if time.monotonic() - self._started > self._options.ready_timeout_seconds:
            return self._not_ready_in_time()
        return None

    def withdraw(self) -> None:
        """Remove the endpoint: from now on requests may be refused."""
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
        """Return the seconds of each phase, from the batch script's first line on."""
        # The last of each: events of an earlier attempt at this stage may come first.
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

    def _not_ready_in_time(self) -> StopReason:
        states = model_states(self._address, self._http)
        waiting = sorted(name for name, state in states.items() if state != "READY")
        what = f"not READY: {', '.join(waiting)}" if waiting else "the server does not answer"
        sentence = f"the server was not ready within {self._options.ready_timeout_seconds:.0f} s ({what})"
        add_event(self._paths, "serve", "ready_timeout", reason=sentence)
        return StopReason("ready timeout", sentence, ExitCode.READINESS)

    def _check_companion(self) -> StopReason | None:
        """Stop when the companion never starts, or its heartbeat stops.

        Only changes of the file count, by this node's own clock: the clocks of two nodes may differ.
        """
        now = time.monotonic()
        try:
            changed = self._paths.heartbeat.stat().st_mtime_ns
        except OSError:
            changed = 0  # not there yet; or the file system failed for a moment, which proves nothing
        if changed and (self._beat is None or self._beat[0] != changed):
            self._beat = (changed, now)
        if self._beat is None:
            start_s = self._options.companion_start_seconds
            if start_s is not None and now - self._ready > start_s:
                return self._stop_for(f"no companion came within {start_s:.0f} s")
            return None
        silence_s = self._options.companion_silence_seconds
        if silence_s is not None and now - self._beat[1] > silence_s:
            return self._stop_for(f"the companion gave no sign of life for {silence_s:.0f} s")
        return None

    def _stop_for(self, sentence: str) -> StopReason:
        with suppress(OSError):  # on a full disk the server must stop all the same
            StopRequest(by="leader", reason=sentence, requested_at=time.time()).write(
                self._paths.stop_request
            )
            add_event(self._paths, "serve", "companion_missing", reason=sentence)
        return StopReason("leader", sentence, ExitCode.START)


# The server's HTTP endpoint ----------------------------------------------------------------


def _request(address: str, port: int, method: str, path: str) -> bytes | None:
    """Return the body of an answer with status 200; ``None`` if there is no such answer."""
    connection = http.client.HTTPConnection(address, port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        return body if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def model_states(address: str, port: int) -> dict[str, str]:
    """Return each model's state from the repository index; nothing if the server does not answer."""
    try:
        index = json.loads(_request(address, port, "POST", "/v2/repository/index") or b"[]")
    except ValueError:
        return {}
    return {entry["name"]: entry.get("state", "") for entry in index}


def ready_models(address: str, port: int) -> list[str] | None:
    """Return the models' names once the server and all of them are ready; ``None`` before."""
    if _request(address, port, "GET", "/v2/health/ready") is None:
        return None
    states = model_states(address, port)
    if not states or any(state != "READY" for state in states.values()):
        return None
    return sorted(states)
