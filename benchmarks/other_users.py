"""Check that another user's connections do not lock the owner of a run out of the proxy.

``python -m benchmarks.other_users [--connections 10600] [--seconds 12] [--as-user nobody]``, as root

HAProxy has the configuration that ``trtllm-hpc`` renders for a run with a key. Another user opens more
connections than HAProxy accepts, never sends the key, and opens a connection again when HAProxy closes it.
The other user sends nothing, one byte, the beginning of HTTP/2 or, with TLS, the first message of a
handshake, to the HTTP port and to the gRPC port. Before, during and after this, the owner opens a connection
every 0.2 s and asks with the key whether the server is ready. With TLS, the owner first opens 1,024
connections at once.

The exit code is 1 if an answer takes 2 s or more (10 s while HAProxy computes a handshake for each of the
other user's connections), or if one of the owner's 1,024 connections is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.server
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.triton import ServerFailed
from trtllm_hpc.backends import facts_of
from trtllm_hpc.client.single_calls import not_ready
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import make_plan
from trtllm_hpc.render.scripts import render_scripts
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.proxy import TRITON_KINDS, Proxy, ProxyOptions, make_certificate, write_key
from trtllm_hpc.runtime.records import Endpoint

BOUND_S = 2.0
HANDSHAKES_BOUND_S = 10.0
_PAUSE_S = 0.2
_BURST = 1024
_LIMIT_S = 20.0
_START_LIMIT_S = 10.0

_OTHER_USER = """
import resource, select, socket, sys, time
port, count, first = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
poller, opened = select.epoll(), {}
while True:
    for _ in range(min(200, count - len(opened))):
        connection = socket.socket()
        connection.setblocking(False)
        # Without TIME_WAIT, so that the ports do not run out.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0] + [0] * 4))
        if connection.connect_ex(("127.0.0.1", port)) not in (0, 115):
            connection.close()
            continue
        opened[connection.fileno()] = connection
        poller.register(connection, select.EPOLLIN | (select.EPOLLOUT if first else 0))
    for handle, what in poller.poll(0.01 if len(opened) == count else 0):
        if what & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            try:
                is_open = opened[handle].recv(4096)
            except OSError:
                is_open = b""
            if not is_open:
                opened.pop(handle).close()
        elif what & select.EPOLLOUT:
            opened[handle].send(first)
            poller.modify(handle, select.EPOLLIN)
"""


class _Ready(http.server.BaseHTTPRequestHandler):
    """Answers every request with status 200, as a ready server does."""

    def do_GET(self) -> None:
        """Send an empty answer."""
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def ready_server() -> Iterator[Endpoint]:
    """Run a server that is always ready; yield its endpoint."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Ready) as behind:
        behind.socket.listen(128)
        threading.Thread(target=behind.serve_forever, daemon=True).start()
        port = behind.server_port
        yield Endpoint("0", "localhost", "127.0.0.1", port, port, port, [], 0.0)
        behind.shutdown()


@contextlib.contextmanager
def open_proxy(folder: Path, server: Endpoint, *, tls: bool = False) -> Iterator[Endpoint]:
    """Run HAProxy before a server; yield the endpoint of the proxy.

    Raises:
        ServerFailed: HAProxy did not start, or the server is not ready through HAProxy.
    """
    os.environ.setdefault("TRTLLM_HPC_JOB_ID", "0")
    serve = {"frontend": "triton", "tls": tls}  # this frontend has no gateway
    engine = {"model": {"path": "/models/any"}, "engine": {"backend": "pytorch"}}
    job = JobFile.model_validate({"name": "proxy", **engine, "serve": serve})
    facts = facts_of(job, ClusterProfile(name="here", scheduler="local"))
    paths = RunPaths(folder)
    scripts = render_scripts(make_plan(facts, paths, sys.executable))
    for file in (paths.proxy(0), paths.batch_log("proxy")):
        file.parent.mkdir(parents=True, exist_ok=True)
    paths.proxy(0).write_text(scripts["haproxy.cfg"], encoding="utf-8")
    write_key(paths.key)
    if tls:
        make_certificate(paths, "127.0.0.1")
    ports = dict(zip(TRITON_KINDS, free_ports(len(TRITON_KINDS)), strict=True))
    behind = {"http_0": server.http, "grpc_0": server.grpc, "metrics_0": f"127.0.0.1:{server.metrics_port}"}
    proxy = Proxy(paths, 0, ProxyOptions("haproxy", TRITON_KINDS, "127.0.0.1"), ports, [], behind)
    endpoint = replace(
        server,
        http_port=ports["http"],
        grpc_port=ports["grpc"],
        key_file=str(paths.key),
        certificate_file=str(paths.certificate) if tls else None,
    )
    try:
        end = time.monotonic() + _START_LIMIT_S
        while not_ready(endpoint, 1.0):
            if not proxy.is_open() or time.monotonic() > end:
                raise ServerFailed("HAProxy did not start, or the server is not ready through HAProxy")
            time.sleep(0.1)
        yield endpoint
    finally:
        proxy.close()


def slowest(proxy: Endpoint, seconds: float) -> float:
    """Ask repeatedly, each time over a new connection; return the longest wait for an answer in seconds."""
    end, longest = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        began = time.monotonic()
        answered = not_ready(proxy, _LIMIT_S) is None
        longest = max(longest, time.monotonic() - began if answered else float("inf"))
        time.sleep(_PAUSE_S)
    return longest


def client_hello() -> bytes:
    """Return the message that begins a TLS handshake."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(
            ssl.MemoryBIO(), sent, server_hostname="localhost"
        ).do_handshake()
    return sent.read()


def attack(proxy: Endpoint, port: int, opening: bytes, arguments: argparse.Namespace) -> list[float]:
    """Run the other user; return the owner's longest waits before, during and after, in seconds."""
    waits = [slowest(proxy, 1.0)]
    other_user = subprocess.Popen(
        ["/usr/bin/python3", "-c", _OTHER_USER, str(port), str(arguments.connections), opening.hex()],
        user=arguments.as_user,
    )
    try:
        waits.append(slowest(proxy, arguments.seconds))
        assert other_user.poll() is None, "the other user's program has failed"
    finally:
        other_user.kill()
        other_user.wait()
    return [*waits, slowest(proxy, 2.0)]


async def refused(proxy: Endpoint, count: int) -> int:
    """Open ``count`` connections at once, as a busy client does; return how many HAProxy refused."""
    trusting = proxy.tls()

    async def asks() -> bool:
        reader, writer = await asyncio.open_connection(proxy.address, proxy.http_port, ssl=trusting)
        # HAProxy itself answers a request without a key, so the server does not affect the result.
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        status = await reader.readline()
        writer.close()
        return b" 401 " in status

    answers = await asyncio.gather(*(asks() for _ in range(count)), return_exceptions=True)
    return count - answers.count(True)


def holds(server: Endpoint, tls: bool, arguments: argparse.Namespace) -> bool:
    """Print the owner's waits in each case at one proxy; return whether all bounds are kept."""
    kept = True
    with tempfile.TemporaryDirectory() as folder, open_proxy(Path(folder), server, tls=tls) as proxy:
        beginnings = {"nothing": b"", "one byte": b"G", "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}
        if tls:
            beginnings["ClientHello"] = client_hello()
            if lost := asyncio.run(refused(proxy, _BURST)):
                print(f"{lost} of {_BURST} connections of the owner refused", flush=True)
                kept = False
        for kind, port in (("http", proxy.http_port), ("grpc", proxy.grpc_port)):
            for name, opening in beginnings.items():
                waits = attack(proxy, port, opening, arguments)
                print(f"{kind}{' with TLS' * tls}, {name} sent: ", end="")
                print(", ".join(f"{wait:.2f} s" for wait in waits), flush=True)
                kept = kept and max(waits) < (HANDSHAKES_BOUND_S if name == "ClientHello" else BOUND_S)
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=10_600, help="of the other user")
    parser.add_argument("--seconds", type=float, default=12.0, help="duration of each case")
    parser.add_argument("--as-user", default="nobody", help="name of the other user")
    arguments = parser.parse_args()
    with ready_server() as server:
        return int(not all([holds(server, tls, arguments) for tls in (False, True)]))


if __name__ == "__main__":
    sys.exit(main())
