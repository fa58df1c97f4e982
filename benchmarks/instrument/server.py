"""Compile the server, start it on its own core, and read the times in its log."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtllm_hpc.runtime.node import free_ports

Times = NDArray[np.float64]
TTFT_MS = 30.0


class InstrumentFailed(Exception):
    """The server or a client failed."""


@dataclass(frozen=True)
class Load:
    """A closed loop, and the server's speed."""

    streams: int
    """Number of concurrent streams."""
    itl_ms: float
    """Interval between two tokens of a stream, in milliseconds."""
    tokens: int
    """Mean length of an answer, in tokens."""
    processes: int = 1
    """Number of processes of our client."""

    def requests(self, seconds: float) -> int:
        """Return the number of requests for about ``seconds`` of load, at least three for each stream."""
        answer_s = (TTFT_MS + self.itl_ms * (self.tokens + 0.5)) / 1e3
        return self.streams * max(3, round(seconds / answer_s))


@dataclass(frozen=True)
class Answer:
    """Times of one request on the server, in seconds of the monotonic clock."""

    asked_s: float
    """Arrival of the request."""
    times_s: Times
    """Send of each token."""

    @property
    def ttft_s(self) -> float:
        """Seconds from the arrival of the request to the send of the first token."""
        return float(self.times_s[0] - self.asked_s)


def build(folder: Path) -> Path:
    """Compile the server into a folder, and return the path of the program."""
    source, program = Path(__file__).with_name("stub.c"), folder / "stub"
    command = [os.environ.get("CC", "cc"), "-O2", "-o", str(program), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InstrumentFailed(f"the server cannot be compiled: {error}; $CC names the compiler") from None
    return program


@contextmanager
def serving(program: Path, load: Load, log: Path, cores: set[int], *, tls: bool) -> Iterator[str]:
    """Run the server, with ``tls`` behind HAProxy, and yield its URL. Afterwards the log is complete."""
    port, tls_port = free_ports(2)
    times = ("--ttft-ms", f"{TTFT_MS}", "--itl-ms", f"{load.itl_ms}")
    with ExitStack() as stack:
        stack.enter_context(_running([str(program), "--port", f"{port}", *times, "--log", str(log)], cores))
        if tls:
            stack.enter_context(_running(_terminator(log.parent, tls_port, port), cores))
        for each_port in (port, tls_port)[: 1 + tls]:
            _await(each_port)
        yield f"https://localhost:{tls_port}/v1" if tls else f"http://127.0.0.1:{port}/v1"


def _await(port: int) -> None:
    for _ in range(100):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise InstrumentFailed(f"nothing listens on port {port} after 5 s")


@contextmanager
def _running(command: list[str], cores: set[int]) -> Iterator[None]:
    def place() -> None:
        os.sched_setaffinity(0, cores)
        with suppress(PermissionError):  # with real-time priority, no other process delays the server
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))

    process = subprocess.Popen(command, preexec_fn=place)
    try:
        yield
        if process.poll() is not None:
            raise InstrumentFailed(f"{command[0]} ended with exit code {process.returncode}")
    finally:
        process.terminate()
        process.wait()


def _terminator(folder: Path, port: int, server_port: int) -> list[str]:
    """Write HAProxy's configuration and certificate, and return its command."""
    certificate, key = folder / "certificate.pem", folder / "certificate.pem.key"
    words = (
        "req -x509 -nodes -newkey rsa:2048 -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *words.split(), *files], check=True, capture_output=True)
    (folder / "haproxy.cfg").write_text(
        "global\n  nbthread 1\n  maxconn 4000\ndefaults\n  mode tcp\n  option tcp-smart-connect\n"
        "  timeout connect 9s\n  timeout client 1h\n  timeout server 1h\n"
        f"listen tls\n  bind 127.0.0.1:{port} ssl crt {certificate}\n  server stub 127.0.0.1:{server_port}\n"
    )
    return ["haproxy", "-db", "-q", "-f", str(folder / "haproxy.cfg")]


def read_log(log: Path) -> dict[int, Answer]:
    """Return the server's times by number of the request, without incomplete answers."""
    answers, data, at = dict[int, Answer](), log.read_bytes(), 0
    while at < len(data):
        number, tokens, asked_s = struct.unpack_from("=IId", data, at)
        answers[number] = Answer(asked_s, np.frombuffer(data, np.float64, tokens, at + 16))
        at += 16 + 8 * tokens
    return answers


def turnarounds_s(answers: dict[int, Answer], streams: int) -> Times:
    """Return the seconds on the server from the end of each answer to the next request.

    A client keeps ``streams`` requests open, so the first request after these follows the first answer that
    ended, the second request the second answer, and so on.
    """
    asked = np.sort([answer.asked_s for answer in answers.values()])[streams:]
    ended = np.sort([answer.times_s[-1] for answer in answers.values()])[: len(asked)]
    return np.asarray(asked - ended)
