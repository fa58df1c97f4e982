"""The proxy: HAProxy between everybody and the servers.

Servers listen on Unix sockets in a folder that no other user may enter. HAProxy listens on the network, asks
for the run's key, and passes requests on: on the job's first node to all instances, through a proxy with the
same key on each other node that has an instance's leader. The configurations are rendered with the other
scripts.
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
"""What the proxy listens for, by the server behind it."""

SOCKETS_VARIABLE = "TRTLLM_HPC_SOCKETS"
"""Environment variable: the folder of an instance's sockets."""

_RESTARTS = 3
"""How often HAProxy is started again on a node."""

_SOCKETS = {"http": "http", "grpc": "grpc:8001", "metrics": "metrics"}
"""Triton's sockets as it names them: that of gRPC ends with its default port."""

_OTHER_FILES = 200
"""Files that HAProxy opens besides connections, at most."""

_ASKED = re.compile(r"key=(\S+) .*\bconn_cur=(\d+) http_req_cnt=(\d+)")
"""Of HAProxy's table of who has asked."""

_TICK_S = 0.2
_GRACE_S = 5.0
"""For answers on their way to a client after the server has ended."""


@dataclass(frozen=True)
class ProxyRecord(JsonRecord):
    """Where the proxy of a further node listens."""

    address: str
    ports: dict[str, int]
    """By ``http_1``, ``grpc_1``, ``metrics_1``, or ``openai_1``, for instance 1, and so on."""
    folder: str
    """With the sockets of the instances of that node."""


@dataclass(frozen=True)
class ProxyOptions:
    """What all proxies of a run have in common."""

    program: str
    """HAProxy."""
    kinds: tuple[str, ...]
    """What it listens for."""
    address: str
    """Of this node."""

    @classmethod
    def of(cls, program: str, kinds: str, interface: str | None, *, loopback: bool) -> ProxyOptions:
        """Return the options that the scripts pass; ``kinds`` with commas between them."""
        return cls(program, tuple(kinds.split(",")), own_address(interface, loopback=loopback))


class Proxy:
    """HAProxy on node number ``node`` of the job, before the ``instances`` whose leaders are there.

    ``ports`` are by the names of the frontends: the kinds, or the same with ``_INSTANCE``. ``further`` says
    where HAProxy reaches other servers, by ``http_1``, ``grpc_1``, ``metrics_1`` and so on, and the front of
    a disaggregated run at each start, by ``openai_front_0`` and so on. Raises StartFailed if there is no
    HAProxy here.
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
        # Its name cannot be guessed, so nobody else can make it first; mode 0700.
        self.folder, self._owned = make_owned(shm_prefix(f"proxy{node}"), SHM)
        self.gateway = self.folder / "gateway"  # not the name of a frontend: with TLS that is a socket, too
        """Socket of the gateway with OpenAI's protocol, in front of Triton."""
        self._guest_map = self.folder / "guests.map"
        self._kinds = options.kinds
        servers = {**self._local_servers(instances), **further}
        if paths.key.exists():
            # HAProxy reads the header of its own questions to other proxies from here.
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
        """HAProxy."""

    def is_open(self) -> bool:
        """Return whether HAProxy runs."""
        return self.process.poll() is None

    def restart(self) -> bool:
        """Start HAProxy again after it has ended; return whether that was still allowed."""
        self._restarts_left -= 1
        if self._restarts_left >= 0:
            self.process = self._start()
        return self._restarts_left >= 0

    def _ask(self, command: str) -> str:
        """Return HAProxy's answer; raises OSError."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(str(self.folder / "socket"))
            connection.sendall(f"{command}\n".encode())
            with connection.makefile(encoding="utf-8") as answer:
                return answer.read()

    def admit(self, guests: Mapping[str, str]) -> None:
        """Let in whoever bears one of these keys, each with a guest's name, and no other guest.

        Raises OSError; HAProxy then does so when it is started again.
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
        """Return how many requests each name has made since HAProxy's start, and how many are open now."""
        rows = _ASKED.findall(self._ask("show table asked"))
        return {name: (int(count), int(running)) for name, running, count in rows}

    def servers_up(self) -> int:
        """Return how many instances get requests, over each protocol of theirs."""
        try:
            lines = [line.split(",") for line in self._ask("show stat").splitlines()]
        except OSError:
            return 0
        # The front's own ways to the servers of its phases have other names.
        up = [line[0] for line in lines if len(line) > 17 and line[17] == "UP" and line[1] != "BACKEND"]
        protocols = OPENAI_KINDS if self._kinds == OPENAI_KINDS else ("http", "grpc")
        return min(map(up.count, protocols))

    def drain(self) -> None:
        """Let nobody in any more; HAProxy ends once the open requests have ended."""
        # HAProxy's "soft stop": no new connections, open ones may finish.
        self.process.send_signal(signal.SIGUSR1)

    def remove_folder(self) -> None:
        """Remove the sockets: what is open goes on, and no request comes through any more."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Let open requests end, for a moment, and then end HAProxy."""
        self.drain()
        self.remove_folder()  # Slurm may kill this process before that moment is over
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE_S)
        self.process.kill()
        self.process.wait()
        self.remove_folder()
        os.close(self._owned)

    def sockets(self, instance: int) -> Path:
        """Return the folder for the sockets of an instance, which its leader makes.

        The file beside it, with the suffix ``.port``, has the port of a server that listens on no socket.
        """
        return self.folder / str(instance)

    def _local_servers(self, instances: Sequence[int]) -> dict[str, str]:
        """Return where HAProxy reaches the servers of this node."""
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
    """Remove the folder of a proxy, with its ``sockets``, whose process was killed, and could not do it."""
    if is_abandoned(sockets.parent):
        shutil.rmtree(sockets.parent, ignore_errors=True)


def threads() -> int:
    """Threads of HAProxy: a quarter of the cores, four at most. By default it would take all."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 4))


def connections() -> int:
    """Return how many connections HAProxy may have at all ports with TLS together.

    Each may take six files: the client's, the server's, and two between each of the three parts in which
    HAProxy waits for TLS, ends it, and reads requests. Without this bound, connections that wait in one part
    could leave nothing for the next part.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return max(1, (files - _OTHER_FILES) // 6)


def run_node_proxy(paths: RunPaths, node: int, instances: Sequence[int], **given: Any) -> int:
    """Run the proxy of a further node until this process is told to end; returns its exit code.

    ``given`` is what ``ProxyOptions.of`` takes.
    """
    options = ProxyOptions.of(**given)
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
    """Write a new random key that only this user can read; one that is there stays."""
    if not file.exists():
        write_text(file, f"{secrets.token_urlsafe(32)}\n", mode=0o600)


def make_certificate(paths: RunPaths, address: str) -> None:
    """Write a self-signed certificate for this host, and its key; raises StartFailed if ``openssl`` fails.

    Clients trust exactly the file ``certificate.crt`` of the run folder. ``certificate.pem`` is what HAProxy
    takes: certificate and private key.
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
    import ssl  # loading it takes 5 ms, and every command reads this module

    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))
