"""What the supervisor starts in front of the servers: a disaggregated front, or the gateway to Triton."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import RunPaths, read_json, write_json
from trtllm_hpc.runtime.probe import Probe
from trtllm_hpc.runtime.process import start_bound
from trtllm_hpc.runtime.records import RELAY_VARIABLE
from trtllm_hpc.runtime.served_model import AUTH_KEY
from trtllm_hpc.runtime.servers.openai import OpenAIHttp

_GRACE_S = 10.0
"""For a process to let its answers end."""
_BACKLOG = 1024
_MOST_STARTS = 3
"""Starts of the gateway in all; each after the first by the next request."""


def with_addresses(
    config: Mapping[str, Any], roles: Mapping[str, Sequence[int]], places: Mapping[int, str], port: int
) -> dict[str, Any]:
    """Return the front's file with its own address and ``places``, each server's ``address:port``."""
    groups = {f"{role}_servers": numbers for role, numbers in roles.items()}
    servers = {
        name: {**config[name], "urls": [places[it] for it in numbers]} for name, numbers in groups.items()
    }
    return {"hostname": "127.0.0.1", "port": port, **config, **servers}


class Front:
    """Starts ``trtllm-serve disaggregated`` once all servers are ready, and watches it.

    ``roles`` are the servers of each phase. The front listens at ``port`` of this node, and may leave a
    question unanswered for ``hang_seconds``, as the probe counts; ``None``: for ever.
    """

    def __init__(
        self, paths: RunPaths, roles: Mapping[str, Sequence[int]], port: int, hang_seconds: float | None
    ) -> None:
        self._paths, self._roles, self._port = paths, roles, port
        self._hang_seconds = hang_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._http: OpenAIHttp | None = None
        self._probe: Probe | None = None

    def start(self, places: Mapping[int, str], models: Sequence[str]) -> None:
        """Start it, unless it runs; ``places`` are each server's ``address:port``."""
        if self._process is not None:
            return
        config = read_json(self._paths.front)
        assert isinstance(config, dict)
        # A front that does not know the key takes it for one of the servers', and does not look at it.
        config[AUTH_KEY] = self._paths.servers_key.read_text(encoding="utf-8").strip()
        # JSON is YAML.
        write_json(self._paths.front_started, with_addresses(config, self._roles, places, self._port))
        self._process = start_bound(["bash", str(self._paths.script("front"))], os.environ)
        self._http = OpenAIHttp(f"127.0.0.1:{self._port}", models)

    def is_ready(self) -> bool:
        """Return whether it has passed on a question, and its answer."""
        if self._http is None or self._http.ready_models() is None:
            return False
        if self._hang_seconds is not None and self._probe is None:
            self._probe = Probe(self._http, self._hang_seconds, self._hang_seconds)
            self._probe.begin(self._http.ready_models() or [])
        return True

    @property
    def fault(self) -> str | None:
        """Why it serves nobody any more, in a sentence."""
        if self._process is not None and self._process.poll() is not None:
            return f"the front of the servers has ended with exit code {self._process.returncode}"
        return None if self._probe is None else self._probe.fault

    def not_ready(self) -> str:
        """Return how far it has come."""
        return "it was not started" if self._http is None else self._http.not_ready()

    def close(self) -> None:
        """End it."""
        if self._probe is not None:
            self._probe.end()
        _end(self._process)


class Gateway:
    """Listens at ``place`` for HAProxy, and starts the gateway with OpenAI's protocol at the first request.

    Most runs never get one, and a Python with its libraries takes a second of a core and 80 MiB. The gateway
    inherits the socket, as from inetd and systemd.
    """

    def __init__(self, paths: RunPaths, place: Path) -> None:
        self._paths = paths
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(place))
        self._socket.listen(_BACKLOG)
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def tick(self) -> str | None:
        """Start the gateway if somebody waits for it; returns a sentence once it cannot be."""
        if self._process is not None and self._process.poll() is None:
            return None
        if self._socket.fileno() < 0 or not select.select([self._socket], [], [], 0)[0]:
            return None
        if self._starts == _MOST_STARTS:
            code = None if self._process is None else self._process.returncode
            self._socket.close()  # so that HAProxy refuses requests at once
            return f"the gateway with OpenAI's protocol has ended {self._starts} times, with exit code {code}"
        self._starts += 1
        self._process = self._start()
        return None

    def close(self) -> None:
        """End the gateway, which lets its answers end."""
        _end(self._process)
        self._socket.close()

    def _start(self) -> subprocess.Popen[bytes]:
        descriptor = self._socket.fileno()
        command = [sys.executable, "-m", "trtllm_hpc", "gateway", "--run", str(self._paths.folder)]
        log = os.open(self._paths.batch_log("gateway"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return start_bound(
                [*command, f"--fd={descriptor}"], {**os.environ, RELAY_VARIABLE: "1"}, log, (descriptor,)
            )
        finally:
            os.close(log)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
