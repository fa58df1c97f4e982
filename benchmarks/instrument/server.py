"""Compile the server, start it on its own core, and read the times in its log."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.proxy import make_certificate

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


def build(folder: Path, *, tls: bool = False) -> Path:
    """Compile the server into a folder, with ``tls`` beside its certificate, and return the program's path.

    Raises InstrumentFailed, and StartFailed if the certificate cannot be made.
    """
    source, program = Path(__file__).with_name("stub.c"), folder / "stub"
    command = [os.environ.get("CC", "cc"), "-O2", "-o", str(program), str(source)]
    if tls:
        command += ["-DTLS", "-lssl", "-lcrypto"]
        make_certificate(RunPaths(folder), "127.0.0.1")
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise InstrumentFailed(f"there is no C compiler ({error}); $CC can name one") from None
    if done.returncode:
        raise InstrumentFailed(f"the server cannot be compiled:\n{done.stderr.strip()}")
    return program


@contextmanager
def serving(program: Path, load: Load, log: Path, cores: set[int], *, tls: bool) -> Iterator[str]:
    """Run the server, with ``tls`` over TLS, and yield its URL. Afterwards the log is complete."""
    [port] = free_ports(1)
    words = ["--port", f"{port}", "--ttft-ms", f"{TTFT_MS}", "--itl-ms", f"{load.itl_ms}", "--log", str(log)]
    if tls:
        words += ["--tls", str(RunPaths(program.parent).certificate_key)]
    with _running([str(program), *words], cores):
        _await(port)
        yield f"http{'s' if tls else ''}://127.0.0.1:{port}/v1"


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
