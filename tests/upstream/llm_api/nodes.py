"""A stand-in for ``tensorrt_llm.llmapi.mgmn_leader_node`` and ``mgmn_worker_node``: what joins the ranks.

All import ``mpi4py.MPI``, which initialises MPI: leader and workers in the step's world, ``stop`` alone. The
leader binds the address that the launcher has chosen, a port as ZeroMQ does (SO_REUSEADDR) or a Unix socket,
after as long as importing the library takes; the server connects to it. The workers wait in mpi4py's executor
until the leader ends.

Without a world of MPI, in the tests of one process each, ``FAKE_LAUNCH_OVER`` is a file in place of it: once
the file is there, the ranks end. Then the standard library is enough.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OVER = Path(os.environ["FAKE_LAUNCH_OVER"]) if "FAKE_LAUNCH_OVER" in os.environ else None
_SIZE = "tllm_mpi_size"
_IMPORT_S = float(os.environ.get("FAKE_IMPORT_SECONDS", "0.3"))


def announced() -> str:
    return os.environ["TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"]


def make_socket() -> tuple[socket.socket, str | tuple[str, int]]:
    """Return a socket of the kind that was announced, and where it is bound or connected."""
    kind, _, place = announced().partition("://")
    if kind == "ipc":
        return socket.socket(socket.AF_UNIX), place
    host, _, port = place.rpartition(":")
    return socket.socket(), (host, int(port))


@contextmanager
def world(*, leads: bool) -> Iterator[None]:
    """Take part in the step's world of MPI until the leader leaves."""
    if OVER is not None:
        yield
        if leads:
            OVER.touch()
        return
    from mpi4py.futures import MPICommExecutor
    from mpi4py.MPI import COMM_WORLD

    size = COMM_WORLD.size
    if leads and (COMM_WORLD.rank != 0 or size != int(os.environ[_SIZE])):
        wanted = os.environ[_SIZE]
        sys.exit(f"n_workers must be equal to the number of processes in MPI, got {wanted} vs {size}")
    with MPICommExecutor(COMM_WORLD) as executor:
        if not leads and executor is not None:
            raise RuntimeError(f"rank{COMM_WORLD.rank} should not have executor")
        yield


def lead() -> None:
    time.sleep(_IMPORT_S)
    server, place = make_socket()
    with server, world(leads=True):
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(place)
        except OSError:
            sys.exit(f"zmq.error.ZMQError: Address already in use (addr='{announced()}')")
        server.listen()
        while True:
            connection, _ = server.accept()
            with connection:
                if connection.recv(16) == b"stop":
                    break
        if isinstance(place, str):
            Path(place).unlink()


def work() -> None:
    with world(leads=False):
        while OVER is not None and not OVER.exists():
            time.sleep(0.05)


def stop() -> None:
    if OVER is None:
        import mpi4py.MPI  # noqa: F401
    connection, place = make_socket()
    with connection:
        connection.connect(place)
        connection.sendall(b"stop")


if __name__ == "__main__":
    {"leader": lead, "worker": work, "stop": stop}[sys.argv[1]]()
