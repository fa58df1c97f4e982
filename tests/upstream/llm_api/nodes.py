"""A stand-in for ``tensorrt_llm.llmapi.mgmn_leader_node`` and ``mgmn_worker_node``: what joins the ranks.

The leader binds the port that the launcher has chosen, as ZeroMQ does (SO_REUSEADDR), after as long as
importing the library takes; the server connects to it. MPI between the nodes is a file, ``FAKE_LAUNCH_OVER``:
once it is there, the ranks end. Standard library only.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

OVER = Path(os.environ["FAKE_LAUNCH_OVER"])
_IMPORT_S = float(os.environ.get("FAKE_IMPORT_SECONDS", "0.3"))


def address() -> tuple[str, int]:
    host, _, port = os.environ["TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"].removeprefix("tcp://").rpartition(":")
    return host, int(port)


def lead() -> None:
    time.sleep(_IMPORT_S)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(address())
        except OSError:
            url = os.environ["TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"]
            sys.exit(f"zmq.error.ZMQError: Address already in use (addr='{url}')")
        server.listen()
        while True:
            connection, _ = server.accept()
            with connection:
                if connection.recv(16) == b"stop":
                    break
    OVER.touch()


def work() -> None:
    while not OVER.exists():
        time.sleep(0.05)


def stop() -> None:
    with socket.create_connection(address()) as connection:
        connection.sendall(b"stop")


if __name__ == "__main__":
    {"leader": lead, "worker": work, "stop": stop}[sys.argv[1]]()
