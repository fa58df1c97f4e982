"""Processes that the supervisor starts in front of the servers: a disaggregated front, or the gateway."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import RunPaths, read_json, write_json
from trtllm_hpc.runtime.process import end_of, start_bound
from trtllm_hpc.runtime.records import RELAY_VARIABLE, try_event
from trtllm_hpc.runtime.servers.openai import AUTH_KEY, OpenAIHttp

_TOKENS = (1, 2, 3, 4)
"""A prompt in token IDs: for a text, the router kv_cache_aware of 1.2.1 would fetch a tokenizer from the
Hub."""
_GRACE_S = 10.0
"""Seconds for a process to finish its answers."""
_BACKLOG = 1024
FRONT_RESTARTS = 3
"""Restarts of the front, after 1, 2 and 4 s."""
_MOST_STARTS = 3
"""Starts of the gateway; after it has ended, the next request starts it again."""


def with_addresses(
    config: Mapping[str, Any], servers: Mapping[str, Sequence[str]], port: int
) -> dict[str, Any]:
    """Return the front's configuration with its own port and the ``address:port`` of each phase's servers."""
    groups = {
        f"{role}_servers": {**config[f"{role}_servers"], "urls": urls} for role, urls in servers.items()
    }
    return {"hostname": "127.0.0.1", "port": port, **config, **groups}


class Front:
    """Starts ``trtllm-serve disaggregated`` once all servers are ready, watches it, and restarts it.

    ``servers`` are addresses of this node's proxy, which forwards to the servers of each phase; they stay
    the same when a server restarts. Each start uses the next of ``ports``: upstream binds without
    SO_REUSEADDR, so it cannot bind a port that had open connections a minute ago.
    """

    def __init__(self, paths: RunPaths, servers: Mapping[str, Sequence[str]], ports: Sequence[int]) -> None:
        self._paths, self._servers, self._ports = paths, servers, ports
        self._models: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._http: OpenAIHttp | None = None
        self._has_served = False
        self._restarts = 0
        self._restart_at: float | None = None

    def start(self, models: Sequence[str]) -> None:
        """Start the front, unless it was started before."""
        if self._process is None:
            self._models = models
            self._begin()

    def _begin(self) -> None:
        config, port = read_json(self._paths.front), self._ports[self._restarts]
        assert isinstance(config, dict)
        # A release that does not know this key takes it for an option of the servers, and ignores it.
        config[AUTH_KEY] = self._paths.servers_key.read_text(encoding="utf-8").strip()
        # JSON is YAML.
        write_json(self._paths.front_started, with_addresses(config, self._servers, port))
        self._http = OpenAIHttp(f"127.0.0.1:{port}", self._models, prompt=_TOKENS)
        self._process = start_bound(["bash", str(self._paths.script("front"))], os.environ)
        self._restart_at = None

    def is_ready(self) -> bool:
        """Return whether the front has forwarded a test request and its answer."""
        is_ready = self._http is not None and self._http.ready_models() is not None
        self._has_served = self._has_served or is_ready
        return is_ready

    def watch(self) -> str | None:
        """Restart the front if it ended after it had served; return a sentence once the run must end."""
        if self._process is None:
            return None
        if self._restart_at is not None:
            if time.monotonic() > self._restart_at:
                self._begin()
            return None
        if self._process.poll() is None:
            return None
        why = f"the front of the servers on {socket.gethostname()} {end_of(self._process.returncode)}"
        if not self._has_served or self._restarts == FRONT_RESTARTS:
            return why
        self._restart_at = time.monotonic() + 2**self._restarts
        self._restarts += 1
        try_event(self._paths, "serve", "front_restarted", why=why)
        return None

    def close(self) -> None:
        """End the front."""
        _end(self._process)


class Gateway:
    """Listens at the socket ``place`` for HAProxy, and starts the OpenAI gateway at the first request.

    Most runs never get such a request, and the gateway costs a second of a core and 80 MiB. It inherits the
    socket, as services of inetd and systemd do.
    """

    def __init__(self, paths: RunPaths, place: Path) -> None:
        self._paths = paths
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(place))
        self._socket.listen(_BACKLOG)
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def tick(self) -> str | None:
        """Start the gateway if a request waits for it; return a sentence after its last start has failed."""
        if self._process is not None and self._process.poll() is None:
            return None
        if self._socket.fileno() < 0 or not select.select([self._socket], [], [], 0)[0]:
            return None
        if self._starts == _MOST_STARTS:
            code = None if self._process is None else self._process.returncode
            self._socket.close()  # HAProxy then refuses requests at once
            return f"the gateway with OpenAI's protocol has ended {self._starts} times, with exit code {code}"
        self._starts += 1
        descriptor = self._socket.fileno()
        command = [sys.executable, "-m", "trtllm_hpc", "gateway", "--run", str(self._paths.folder)]
        self._process = start_bound(
            [*command, f"--fd={descriptor}"],
            {**os.environ, RELAY_VARIABLE: "1"},
            self._paths.batch_log("gateway"),
            (descriptor,),
        )
        return None

    def close(self) -> None:
        """End the gateway, which first finishes its answers."""
        _end(self._process)
        self._socket.close()


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
