"""The proxy: HAProxy between the clients and the servers.

Servers listen on Unix sockets in a folder that no other user may enter. HAProxy listens on the network,
requires the run's key, and forwards requests. The proxy on the job's first node forwards to all instances;
instances on another node are reached through a proxy there, with the same key. The configurations are
rendered with the scripts.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import ExitCode, StartFailed
from trtllm_hpc.paths import RunPaths, write_text
from trtllm_hpc.runtime.node import SHM, free_ports, is_abandoned, make_owned, own_address, shm_prefix
from trtllm_hpc.runtime.process import on_signals, start_bound
from trtllm_hpc.runtime.records import JsonRecord

TRITON_KINDS = ("http", "grpc", "metrics")
OPENAI_KINDS = ("openai",)
"""Protocols that the proxy forwards to a Triton server, and to a server with OpenAI's protocol."""

SOCKETS_VARIABLE = "TRTLLM_HPC_SOCKETS"
"""Environment variable with the folder of an instance's sockets."""

_RESTARTS = 3
"""Restarts of HAProxy on a node."""

_SOCKETS = {"http": "http", "grpc": "grpc:8001", "metrics": "metrics"}
"""Names of Triton's sockets: Triton appends the default port to the name of the gRPC socket."""

_OTHER_FILES = 200
"""Largest number of files that HAProxy opens besides connections."""

_ASKED = re.compile(r"key=(\S+) .*\bconn_cur=(\d+) http_req_cnt=(\d+)")
"""A line of HAProxy's table ``asked``: name, open requests and all requests."""

_TICK_S = 0.2
_GRACE_S = 5.0
"""Seconds for answers on their way to a client after the server has ended."""


@dataclass(frozen=True)
class ProxyRecord(JsonRecord):
    """Address of the proxy on a further node."""

    address: str
    ports: dict[str, int]
    """Port of each protocol and instance, by names such as ``http_1``, ``grpc_1``, ``metrics_1``,
    ``openai_1``."""
    folder: str
    """Folder with the sockets of that node's instances."""


@dataclass(frozen=True)
class ProxyOptions:
    """Options shared by all proxies of a run."""

    program: str
    """Path or name of HAProxy."""
    kinds: tuple[str, ...]
    """Protocols that the proxy listens for."""
    address: str
    """This node's address."""

    @classmethod
    def of(cls, program: str, kinds: str, interface: str | None, *, loopback: bool) -> ProxyOptions:
        """Return the options from the scripts' arguments; ``kinds`` has commas between protocols."""
        return cls(program, tuple(kinds.split(",")), own_address(interface, loopback=loopback))


class Proxy:
    """HAProxy on node number ``node`` of the job, in front of the ``instances`` whose leaders run there.

    ``ports`` has the port of each frontend by its name: a protocol, or ``PROTOCOL_INSTANCE``. ``further`` has
    the addresses of servers elsewhere, by names such as ``http_1`` and ``grpc_1``, and the addresses of the
    disaggregated front at each of its starts, by ``openai_front_0`` and so on. Raises StartFailed if HAProxy
    cannot be started.
    """

    def __init__(
        self,
        paths: RunPaths,
        node: int,
        options: ProxyOptions,
        ports: Mapping[str, int],
        instances: Sequence[int],
        further: Mapping[str, str],
    ) -> None:
        # A folder of mode 0700 with a random name, which no other user can make first.
        self.folder, self._owned = make_owned(shm_prefix(f"proxy{node}"), SHM)
        # Must not be the name of a frontend, because with TLS each frontend has a socket of its name here.
        self.gateway = self.folder / "gateway"
        """Socket of the gateway that translates OpenAI's protocol for Triton."""
        self._guest_map = self.folder / "guests.map"
        self._kinds = options.kinds
        servers = {**self._local_servers(instances), **further}
        if paths.key.exists():
            # HAProxy reads the key for its own health checks of other proxies from this file.
            write_text(self.folder / "key.map", f"key {paths.key.read_text().strip()}\n", mode=0o600)
        self._guests: dict[str, str] = {}
        write_text(self._guest_map, "")
        self._command = [options.program, "-db", "-f", str(paths.proxy(node))]
        self._environment = {
            **os.environ,
            "TRTLLM_HPC_ADDRESS": options.address,
            "TRTLLM_HPC_PROXY": str(self.folder),
            "TRTLLM_HPC_GATEWAY": f"unix@{self.gateway}",
            "TRTLLM_HPC_PROXY_THREADS": str(threads()),
            "TRTLLM_HPC_PROXY_CONNECTIONS": str(connections()),
            "TRTLLM_HPC_KEY": str(paths.key),
            "TRTLLM_HPC_CERTIFICATE": str(paths.certificate),
            "TRTLLM_HPC_CERTIFICATE_KEY": str(paths.certificate_key),
            **{f"TRTLLM_HPC_PORT_{name.upper()}": str(port) for name, port in ports.items()},
            **{f"TRTLLM_HPC_{name.upper()}": where for name, where in servers.items()},
        }
        self._log = paths.batch_log("proxy")
        self._restarts_left = _RESTARTS
        self.process = self._start()
        """HAProxy's process."""

    def is_open(self) -> bool:
        """Return whether HAProxy runs."""
        return self.process.poll() is None

    def restart(self) -> bool:
        """Restart HAProxy after it has ended; return ``False`` once there were too many restarts."""
        self._restarts_left -= 1
        if self._restarts_left >= 0:
            self.process = self._start()
        return self._restarts_left >= 0

    def _ask(self, command: str) -> str:
        """Return HAProxy's answer to a command of its runtime API; raise OSError."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(str(self.folder / "socket"))
            connection.sendall(f"{command}\n".encode())
            with connection.makefile(encoding="utf-8") as answer:
                return answer.read()

    def admit(self, guests: Mapping[str, str]) -> None:
        """Admit exactly these guests: ``guests`` has a guest's name by key.

        Raises OSError if HAProxy does not answer; it then reads the new keys at its next start.
        """
        if guests == self._guests:
            return
        text = "".join(f"{key} {name}\n" for key, name in guests.items())
        write_text(self._guest_map, text)
        version = self._ask(f"prepare map {self._guest_map}").rpartition(":")[2].strip()
        if guests:
            self._ask(f"add map @{version} {self._guest_map} <<\n{text}")
        self._ask(f"commit map @{version} {self._guest_map}")
        self._guests = dict(guests)

    def asked(self) -> dict[str, tuple[int, int]]:
        """Return each name's number of requests since HAProxy's start, and of those that are open now."""
        rows = _ASKED.findall(self._ask("show table asked"))
        return {name: (int(count), int(running)) for name, running, count in rows}

    def servers_up(self) -> int:
        """Return the number of instances that HAProxy reaches over all of their protocols."""
        try:
            lines = [line.split(",") for line in self._ask("show stat").splitlines()]
        except OSError:
            return 0
        # Only lines named after a protocol count: the frontends for a disaggregated front's servers have
        # other names.
        up = [line[0] for line in lines if len(line) > 17 and line[17] == "UP" and line[1] != "BACKEND"]
        protocols = OPENAI_KINDS if self._kinds == OPENAI_KINDS else ("http", "grpc")
        return min(map(up.count, protocols))

    def drain(self) -> None:
        """Accept no new connections; HAProxy ends once the open requests have ended."""
        # SIGUSR1 is HAProxy's "soft stop".
        self.process.send_signal(signal.SIGUSR1)

    def remove_folder(self) -> None:
        """Remove the sockets: open connections go on, and no new request reaches a server."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Give open requests a moment to end, then end HAProxy."""
        self.drain()
        self.remove_folder()  # before the wait, during which Slurm may kill this process
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE_S)
        self.process.kill()
        self.process.wait()
        self.remove_folder()
        os.close(self._owned)

    def sockets(self, instance: int) -> Path:
        """Return the folder for the sockets of an instance, which the instance's leader makes.

        A server that cannot listen on sockets finds its port in the file beside the folder with the suffix
        ``.port``.
        """
        return self.folder / str(instance)

    def _local_servers(self, instances: Sequence[int]) -> dict[str, str]:
        """Return the addresses of this node's servers, by names such as ``http_0``."""
        if self._kinds == OPENAI_KINDS:
            ports = dict(zip(instances, free_ports(len(instances)), strict=True))
            for instance, port in ports.items():
                write_text(self.folder / f"{instance}.port", f"{port}\n")
            return {f"openai_{instance}": f"127.0.0.1:{port}" for instance, port in ports.items()}
        return {
            f"{kind}_{instance}": f"unix@{self.sockets(instance)}/{name}"
            for instance in instances
            for kind, name in _SOCKETS.items()
        }

    def _start(self) -> subprocess.Popen[bytes]:
        program = self._command[0]
        try:
            return start_bound(self._command, self._environment, self._log)
        except OSError as error:
            raise StartFailed(
                f"the proxy cannot be opened: {program} cannot be started on {os.uname().nodename} "
                f"({error.strerror})",
                hint="install HAProxy on the nodes (the package haproxy of every distribution), or set "
                "haproxy in the cluster profile to its path, or serve without a proxy: serve.proxy: none",
            ) from error


def remove_abandoned(sockets: Path) -> None:
    """Remove the folder of the proxy of ``sockets`` if its process was killed and could not remove it."""
    if is_abandoned(sockets.parent):
        shutil.rmtree(sockets.parent, ignore_errors=True)


def threads() -> int:
    """Return HAProxy's number of threads: a quarter of the cores, at most four; its default is all cores."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 4))


def connections() -> int:
    """Return the number of connections that HAProxy may have at all ports with TLS together.

    A connection may need six files: the client's, the server's, and two between each pair of the three parts
    in which HAProxy waits for TLS, ends it, and reads requests. Without this limit, connections that wait in
    one part could leave no files for the next part.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return max(1, (files - _OTHER_FILES) // 6)


def run_node_proxy(paths: RunPaths, node: int, instances: Sequence[int], **proxy_options: Any) -> int:
    """Run the proxy of a further node until this process gets a signal; return the exit code.

    ``proxy_options`` are the arguments of ``ProxyOptions.of``.
    """
    options = ProxyOptions.of(**proxy_options)
    parent, stops = os.getppid(), list[str]()
    on_signals(stops.append)
    # The gateway is on the job's first node only.
    kinds = OPENAI_KINDS if options.kinds == OPENAI_KINDS else TRITON_KINDS
    names = [f"{kind}_{instance}" for instance in instances for kind in kinds]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    try:
        proxy = Proxy(paths, node, options, ports, instances, {})
        ProxyRecord(options.address, ports, str(proxy.folder)).write(paths.proxy_ports(node))
        while not stops and os.getppid() == parent and (proxy.is_open() or proxy.restart()):
            time.sleep(_TICK_S)
    except StartFailed as error:
        print(f"error: {error.message}.\n  next: {error.hint}", file=sys.stderr, flush=True)
        return ExitCode.START
    proxy.close()
    return ExitCode.OK if stops else ExitCode.START


def write_key(file: Path) -> None:
    """Write a new random key that only this user can read, unless the file exists."""
    if not file.exists():
        write_text(file, f"{secrets.token_urlsafe(32)}\n", mode=0o600)


def make_certificate(paths: RunPaths, address: str) -> None:
    """Write a self-signed certificate for this host, and its key; raise StartFailed if ``openssl`` fails.

    Clients trust exactly the file ``certificate.crt`` of the run folder. HAProxy reads ``certificate.pem``,
    which has the certificate and the private key.
    """
    names = f"subjectAltName=IP:{address},IP:127.0.0.1,DNS:{socket.gethostname()},DNS:localhost"
    key = paths.certificate_key.with_suffix(".key")
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", "365", "-subj", "/CN=trtllm-hpc", "-addext", names),
        *("-keyout", str(key), "-out", str(paths.certificate)),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        write_text(paths.certificate_key, key.read_text() + paths.certificate.read_text(), mode=0o600)
    except (OSError, subprocess.CalledProcessError) as error:
        why = str(getattr(error, "stderr", None) or error).strip()
        hint = "install openssl on the nodes, or set serve.tls to false"
        raise StartFailed(f"the certificate cannot be made: {why}", hint=hint) from error
    finally:
        key.unlink(missing_ok=True)


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 fingerprint of a certificate (PEM), as ``openssl x509 -fingerprint`` shows it."""
    import ssl  # imported here because it takes 5 ms, and every command imports this module

    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))
