"""The run's clients: publish the endpoint, admit guests, count requests, and end an idle server.

The endpoint is published once every instance is ready and the proxy reaches all of them.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.instances.instance import Instance, SupervisorOptions
from trtllm_hpc.runtime.instances.proxies import Proxies
from trtllm_hpc.runtime.leader import ReadyRecord
from trtllm_hpc.runtime.proxy import TRITON_KINDS, fingerprint
from trtllm_hpc.runtime.records import IDLE, Endpoint, Visits, guest_keys, read_events, try_event
from trtllm_hpc.runtime.renewal import note_renewed

_LOOK_S = 1.0
_WRITE_S = 5.0
"""Seconds between two writes of new counts."""
_WARNING_S = 600.0
"""Seconds before its end at which an idle server is announced; half of the idle time if that is shorter."""
_REACH_TIMEOUT_S = 60.0
"""Seconds that the proxy may take to reach all instances once they are ready."""


class ClientWatch:
    """Counts requests at the proxy. Without a proxy it does nothing, and no server ends as idle."""

    def __init__(self, paths: RunPaths, proxies: Proxies, idle_s: float | None) -> None:
        self._paths, self._proxies, self._idle_s = paths, proxies, idle_s
        self._visits = self._written = Visits.read(paths.visits) or Visits()
        self._counts: dict[str, int] = {}
        self._look_at = self._write_at = 0.0
        self._asked_at = time.monotonic()
        self._is_warned = False

    def tick(self, *, serves: bool) -> str | None:
        """Look at most once a second; return a sentence once there was no request for too long."""
        now, proxy = time.monotonic(), self._proxies.own
        if now < self._look_at or proxy is None:
            return None
        self._look_at = now + _LOOK_S
        with suppress(
            OSError, ValueError
        ):  # HAProxy is restarting, or the file system fails: try again later
            asked = dict(self._visits.asked)
            # Opened each time, since NFS asks the server only when a file is opened.
            keys = guest_keys(self._paths, time.time())
            proxy.admit(keys)
            for name, (count, running) in proxy.asked().items():
                more = count - self._counts.get(name, 0)
                more = count if more < 0 else more  # HAProxy was restarted, and counts from zero
                self._counts[name] = count
                if more or running:
                    asked[name] = [asked.get(name, [0])[0] + more, time.time()]
                    self._asked_at = now
            self._visits = Visits(sorted(keys.values()), asked)
            is_due = self._visits.admitted != self._written.admitted or now >= self._write_at
            if is_due and self._visits != self._written:
                self._visits.write(self._paths.visits)
                self._written, self._write_at = self._visits, now + _WRITE_S
        if not serves:
            self._asked_at = now
        if (idle_s := self._idle_s) is None:
            return None
        left_s, minutes = self._asked_at + idle_s - now, f"{idle_s / 60:g} minute{'s' * (idle_s != 60)}"
        if (is_late := left_s <= min(_WARNING_S, idle_s / 2)) != self._is_warned:
            self._is_warned = is_late
            try_event(self._paths, "serve", IDLE, ends_at=time.time() + left_s if is_late else None)
        return f"nobody has asked for {minutes} (serve.idle_minutes)" if left_s <= 0 else None


class Publisher:
    """Writes the endpoint once the run can serve, and withdraws it."""

    def __init__(self, paths: RunPaths, options: SupervisorOptions, proxies: Proxies) -> None:
        self._paths, self._options, self._proxies = paths, options, proxies
        self._ready_since: float | None = None
        self.is_published = False

    def tick(self, instances: Sequence[Instance]) -> bool:
        """Publish the endpoint once all living instances are ready and reached; return whether it is.

        Raises StartFailed if the proxy does not reach all instances in time.
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
        """Remove the endpoint."""
        if self.is_published:
            with suppress(OSError):  # the servers must stop even on a full disk
                self._paths.endpoint.unlink(missing_ok=True)
            try_event(self._paths, "serve", "server_stop")
        self.is_published = False

    def _publish(self, records: Sequence[ReadyRecord]) -> None:
        ready_at, options = time.time(), self._options
        where = records[0].endpoint
        if options.proxy is not None:
            ports, address = self._proxies.ports, options.proxy.address
            openai = f"{'https' if options.tls else 'http'}://{address}:{ports.get('openai')}/v1"
            where = {
                "host": socket.gethostname(),
                "address": address,
                **{f"{kind}_port": ports.get(kind, 0) for kind in TRITON_KINDS},
                "openai_url": openai if "openai" in ports else None,
            }
        # The last time of each name: events of an earlier attempt at this stage may come first.
        times = {event.name: event.time for event in read_events(self._paths, "serve")}
        started_at = max(record.started_at for record in records)
        begin = times.get("stage_begin", started_at)
        staged = max(times.get("staged", begin), begin)
        checked = times.get("preflight_ok", staged)
        phases = {
            **({"staging": staged - begin} if staged > begin else {}),
            "preflight": checked - staged,
            "launch": started_at - checked,
            # One phase, because Triton opens its ports only when every model is loaded.
            "load": ready_at - started_at,
            "total": ready_at - begin,
        }
        endpoint = Endpoint(
            job_id=os.environ.get("TRTLLM_HPC_JOB_ID", ""),
            models=sorted(set.intersection(*(set(record.models) for record in records))),
            ready_at=ready_at,
            phases_s={name: round(seconds, 3) for name, seconds in phases.items()},
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
