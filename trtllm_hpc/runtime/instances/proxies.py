"""The proxies of a run: HAProxy on each node with an instance's leader; the first also serves clients."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.front import FRONT_RESTARTS, Front, Gateway
from trtllm_hpc.runtime.instances.instance import SupervisorOptions
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.process import start_bound
from trtllm_hpc.runtime.proxy import Proxy, ProxyRecord, make_certificate, write_key
from trtllm_hpc.runtime.records import try_event

_TICK_S = 0.2
_OPEN_TIMEOUT_S = 60.0
"""Seconds that the proxies of the other nodes may take to open."""
_CLOSE_TIMEOUT_S = 10.0
_SETTLE_S = 1.0
"""Seconds for a signal to the job to arrive here: Slurm may signal the proxies before this process."""


class Proxies:
    """The proxy on this node, and the proxies on other nodes to which it forwards; a run may have none."""

    def __init__(self, paths: RunPaths, options: SupervisorOptions, is_signalled: Callable[[], bool]) -> None:
        self._paths, self._options, self._is_signalled = paths, options, is_signalled
        self.ports: dict[str, int] = {}
        """Ports of the proxy on this node, by kind of protocol."""
        self.own: Proxy | None = None
        """The proxy on this node."""
        self.front: Front | None = None
        self.gateway: Gateway | None = None
        self._others: list[subprocess.Popen[bytes]] = []
        self._sockets: set[Path] = set()
        self._hint = f"read {paths.batch_log('proxy')}"

    def open(self) -> dict[int, Path]:
        """Open all proxies; return the folder for the sockets of each instance. Raises StartFailed."""
        options = self._options
        if options.proxy is None:
            return {}
        if options.key:
            write_key(self._paths.key)
        if options.roles:
            write_key(self._paths.servers_key)
        if options.tls:
            make_certificate(self._paths, options.proxy.address)
        self.ports = dict(zip(options.proxy.kinds, free_ports(len(options.proxy.kinds)), strict=True))
        further_nodes = {node: instances for node, instances in options.leaders.items() if node != 0}
        for node, instances in further_nodes.items():
            self._paths.proxy_ports(node).unlink(missing_ok=True)
            words = [str(self._paths.script("proxy")), str(node), *map(str, instances)]
            self._others.append(start_bound(["bash", *words], os.environ))
        others, deadline = dict[int, ProxyRecord](), time.monotonic() + _OPEN_TIMEOUT_S
        for node in further_nodes:
            while (record := ProxyRecord.read(self._paths.proxy_ports(node))) is None:
                ended = any(proxy.poll() is not None for proxy in self._others)
                if ended or self._is_signalled() or time.monotonic() > deadline:
                    raise StartFailed(f"the proxy on node {node} of the job did not open", hint=self._hint)
                time.sleep(_TICK_S)
            others[node] = record
        further = {
            name: f"{record.address}:{port}"
            for record in others.values()
            for name, port in record.ports.items()
        }
        ports = dict(self.ports)
        if options.roles:
            fronts = free_ports(1 + FRONT_RESTARTS)
            further |= {f"openai_front_{start}": f"127.0.0.1:{port}" for start, port in enumerate(fronts)}
            servers = {}
            for role, numbers in options.roles.items():
                free = free_ports(len(numbers))
                ports |= {f"server_{number}": port for number, port in zip(numbers, free, strict=True)}
                servers[role] = [f"127.0.0.1:{port}" for port in free]
            self.front = Front(self._paths, servers, fronts)
        proxy = self.own = Proxy(self._paths, 0, options.proxy, ports, options.leaders.get(0, ()), further)
        if "openai" in self.ports and "http" in self.ports:
            self.gateway = Gateway(self._paths, proxy.gateway)
        folders = {number: proxy.sockets(number) for number in range(options.count)}
        for node, record in others.items():
            folders |= {number: Path(record.folder) / str(number) for number in options.leaders[node]}
        return folders

    def watch(self, *, may_restart: bool) -> bool:
        """Restart an ended proxy, or raise StartFailed; return whether Slurm is ending the job."""
        ended = [proxy for proxy in self._others if proxy.poll() is not None]
        if self.own is None or (self.own.is_open() and not ended):
            return False
        time.sleep(_SETTLE_S)
        # A proxy ends with 0 only after a signal: Slurm ends the job's steps.
        if self._is_signalled() or any(proxy.returncode == 0 for proxy in ended):
            return True
        if ended:
            raise StartFailed("the proxy on another node has ended", hint=self._hint)
        sentence = f"the proxy (HAProxy) ended by itself, with exit code {self.own.process.returncode}"
        if not may_restart or not self.own.restart():
            raise StartFailed(sentence, hint=self._hint)
        try_event(self._paths, "serve", "proxy_restarted", why=sentence)
        return False

    def missing_sockets(self, *, all_ready: bool) -> dict[str, str]:
        """Return a sentence under the key ``sockets`` if a socket on this node was removed; else nothing."""
        present = set() if self.own is None else set(self.own.folder.rglob("*"))
        # An ending instance removes its own sockets, so sockets count only while all instances are ready;
        # HAProxy renames its sockets by way of .tmp and .bak.
        self._sockets = {
            file for file in self._sockets | present if all_ready and file.suffix not in (".tmp", ".bak")
        }
        missing = sorted(map(str, self._sockets - present))
        return {"sockets": f"sockets of the server were removed: {missing[0]}"} if missing else {}

    def remove_folder(self) -> None:
        """Remove the sockets of this node's proxy, so that no further request reaches a server."""
        if self.own is not None:
            self.own.remove_folder()

    @property
    def pids(self) -> set[int]:
        """Process IDs of all proxies."""
        own = set() if self.own is None else {self.own.process.pid}
        return own | {proxy.pid for proxy in self._others}

    def close(self) -> None:
        """Close all proxies; open requests get a moment to end."""
        for part in (self.front, self.gateway, self.own):
            if part is not None:
                part.close()
        for proxy in self._others:
            proxy.terminate()
        for proxy in self._others:
            with suppress(subprocess.TimeoutExpired):
                proxy.wait(_CLOSE_TIMEOUT_S)
