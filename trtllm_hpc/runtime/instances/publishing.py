"""Publish the endpoint of a run, once every instance is ready and the proxy reaches it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.instances.instance import Instance, SupervisorOptions
from trtllm_hpc.runtime.instances.proxies import Proxies
from trtllm_hpc.runtime.leader import ReadyRecord
from trtllm_hpc.runtime.proxy import fingerprint
from trtllm_hpc.runtime.records import Endpoint, read_events, try_event
from trtllm_hpc.runtime.renewal import note_renewed

_REACH_TIMEOUT_S = 60.0
"""From the moment at which all instances are ready to the moment at which the proxy reaches them."""


class Publisher:
    """Writes the endpoint, and takes it back."""

    def __init__(self, paths: RunPaths, options: SupervisorOptions, proxies: Proxies) -> None:
        self._paths, self._options, self._proxies = paths, options, proxies
        self._ready_since: float | None = None
        self.is_published = False

    def tick(self, instances: Sequence[Instance]) -> bool:
        """Publish the endpoint once all living instances are ready and reached; returns whether it was.

        Raises StartFailed if the proxy does not reach them in time.
        """
        living = [instance for instance in instances if instance.lives]
        if not living or any(instance.state != "ready" for instance in living):
            self._ready_since = None
            return False
        files = {instance.number: self._paths.ready_record(instance.step) for instance in living}
        known = {number: record for number, file in files.items() if (record := ReadyRecord.read(file))}
        if len(known) < len(living):
            return False  # an instance has just ended
        front = self._proxies.front
        if front is not None:
            front.start(next(iter(known.values())).models)
            if not front.is_ready():
                return False
        self._ready_since = self._ready_since or time.monotonic()
        wanted = len(living) if front is None else 1
        reached = wanted if self._proxies.own is None else self._proxies.own.servers_up()
        if reached >= wanted:
            self._publish(list(known.values()))
            return True
        if time.monotonic() - self._ready_since > _REACH_TIMEOUT_S:
            raise StartFailed(
                f"the proxy sees {reached} of {wanted} instances, though all are ready",
                hint=f"read {self._paths.batch_log('proxy')}; a container must share the host's /dev/shm",
            )
        return False

    def withdraw(self) -> None:
        """Remove the endpoint; on a full disk the servers must stop all the same."""
        if self.is_published:
            with suppress(OSError):
                self._paths.endpoint.unlink(missing_ok=True)
            try_event(self._paths, "serve", "server_stop")
        self.is_published = False

    def _publish(self, records: Sequence[ReadyRecord]) -> None:
        ready_at, options = time.time(), self._options
        where = records[0].endpoint if options.proxy is None else self._at_the_proxy(options.proxy.address)
        endpoint = Endpoint(
            job_id=os.environ.get("TRTLLM_HPC_JOB_ID", ""),
            models=sorted(set.intersection(*(set(record.models) for record in records))),
            ready_at=ready_at,
            phases_s=_phases(self._paths, max(record.started_at for record in records), ready_at),
            key_file=str(self._paths.key) if options.key else None,
            certificate_file=str(self._paths.certificate) if options.tls else None,
            fingerprint=fingerprint(self._paths.certificate) if options.tls else None,
            instances=1 if options.roles else options.count,
            **where,
        )
        endpoint.write(self._paths.endpoint)
        self.is_published = True
        with suppress(OSError):
            note_renewed(self._paths, ready_at)
        try_event(self._paths, "serve", "ready", **asdict(endpoint))
        print(f"ready: {', '.join(endpoint.models)} at {endpoint.places}", flush=True)

    def _at_the_proxy(self, address: str) -> dict[str, Any]:
        """Return the fields of the endpoint that say where the proxy answers."""
        ports, scheme = self._proxies.ports, "https" if self._options.tls else "http"
        return {
            "host": socket.gethostname(),
            "address": address,
            "http_port": ports.get("http", 0),
            "grpc_port": ports.get("grpc", 0),
            "metrics_port": ports.get("metrics", 0),
            "openai_url": f"{scheme}://{address}:{ports['openai']}/v1" if "openai" in ports else None,
        }


def _phases(paths: RunPaths, started_at: float, ready_at: float) -> dict[str, float]:
    """Return the seconds of each phase of a server started at ``started_at``, in seconds since the epoch."""
    # The last of each: events of an earlier attempt at this stage may come first.
    times = {event.name: event.time for event in read_events(paths, "serve")}
    begin = times.get("stage_begin", started_at)
    staged = max(times.get("staged", begin), begin)
    checked = times.get("preflight_ok", staged)
    marks = {
        **({"staging": staged - begin} if staged > begin else {}),
        "preflight": checked - staged,
        "launch": started_at - checked,
        # Triton opens its ports only when every model is loaded.
        "load": ready_at - started_at,
        "total": ready_at - begin,
    }
    return {name: round(seconds, 3) for name, seconds in marks.items()}
