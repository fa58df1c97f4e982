"""The process in front of the servers of a disaggregated run: ``trtllm-serve disaggregated``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from trtllm_hpc.paths import RunPaths, read_json, write_json
from trtllm_hpc.runtime.probe import Probe
from trtllm_hpc.runtime.process import start_bound
from trtllm_hpc.runtime.served_model import AUTH_KEY
from trtllm_hpc.runtime.servers.openai import OpenAIHttp

_GRACE_S = 10.0


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
    """Starts it once all servers are ready, and watches it.

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
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
