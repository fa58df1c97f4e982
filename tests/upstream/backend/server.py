"""The container's ``tritonserver``: the real one with one more backend, and the MPI process of its models.

Upstream's backend calls MPI in the server's own process. Here the models are processes of Triton's Python
backend, and MPI takes no second process by the same rank: so this program, the server's parent, does it.

``TRTLLM_ORCHESTRATOR`` and ``TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES`` decide as they do upstream:

- neither: every rank takes part in every model, rank 0 leads (leader mode);
- both 1: this process has no rank of a model and spawns them (``MPI_Comm_spawn``);
- the second 0: rank 0 has no rank of a model, the others are those that ``participant_ids`` names.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
if TYPE_CHECKING:
    from tests.upstream.backend.ranks import ASK, Rank, check_engine, receive
else:
    sys.path.insert(0, str(HERE))  # it is copied into the container
    from ranks import ASK, Rank, check_engine, receive


class Models:
    """The models' ranks, as one server's MPI process sees them. One call at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spawned: dict[str, Any] = {}
        self._leaders: dict[str, int] = {}
        self._own: dict[str, Rank] = {}
        self._orchestrates = os.environ.get("TRTLLM_ORCHESTRATOR") == "1"
        self._spawns = os.environ.get("TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES", "1") == "1"

    def load(self, name: str, engine: str, gpus: list[int], participants: list[int]) -> None:
        """Start or join the ranks of a model's instance; on a rank that computes it returns only at the end.

        Raises:
            RuntimeError: the engine does not fit the ranks.
        """
        from mpi4py import MPI

        if self._orchestrates and self._spawns:
            with self._lock:
                program = [str(HERE / "ranks.py"), engine]
                children = MPI.COMM_SELF.Spawn(sys.executable, args=program, maxprocs=len(gpus))
                fault = receive(children, 0, ASK)
                if fault is not None:
                    children.Disconnect()
                    raise RuntimeError(fault)
                self._spawned[name] = children
            return
        comm = MPI.COMM_WORLD
        rank, group = comm.Get_rank(), participants or list(range(comm.Get_size()))
        if rank in group:
            check_engine(engine, group.index(rank), len(group))
        elif not self._orchestrates or rank > 0:
            return
        if rank > 0:
            Rank(comm, group).serve(comm, 0)
            os._exit(0)  # as upstream's workers do
        if rank in group:
            self._own[name] = Rank(comm, group)
        self._leaders[name] = group[0]

    def ask(self, name: str, request: dict[str, Any]) -> Any:
        """Return the answer of a model's instance."""
        with self._lock:
            if name in self._own:
                return self._own[name].answer(request)
            comm, leader = self._channel(name)
            comm.send(request, dest=leader, tag=ASK)
            return receive(comm, leader, ASK)

    def end(self) -> None:
        """End the ranks that wait for this process."""
        with self._lock:
            for name in {**self._spawned, **self._leaders}:
                if name in self._own:
                    self._own[name].end()
                else:
                    comm, leader = self._channel(name)
                    comm.send(None, dest=leader, tag=ASK)
            for comm in self._spawned.values():
                comm.Disconnect()

    def _channel(self, name: str) -> tuple[Any, int]:
        from mpi4py import MPI

        return (self._spawned[name], 0) if name in self._spawned else (MPI.COMM_WORLD, self._leaders[name])


def main() -> int:
    """Run the real server to its end; returns its exit code."""
    server = json.loads((HERE / "server.json").read_text())
    # An abstract socket: a file would stay when this process is killed.
    name = f"stand-in-{os.getpid()}"
    listener = Listener(f"\0{name}", "AF_UNIX")
    command = [server["program"], *server["arguments"], *sys.argv[1:]]
    process = subprocess.Popen(command, env={**os.environ, **server["environment"], "STAND_IN_SOCKET": name})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: process.send_signal(received))
    models = Models()
    threading.Thread(target=_accept, args=(listener, models), daemon=True).start()
    while (code := process.poll()) is None:
        time.sleep(0.05)
    models.end()
    sys.stdout.flush()
    return code if code >= 0 else 128 - code


def _accept(listener: Listener, models: Models) -> None:
    while True:
        connection = listener.accept()
        threading.Thread(target=_serve, args=(connection, models), daemon=True).start()


def _serve(connection: Connection, models: Models) -> None:
    """Do what one model's process asks for; each call is answered with a fault or ``None``, and a result."""
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((None, getattr(models, method)(*arguments)))
        except (RuntimeError, OSError) as error:
            connection.send((str(error), None))


if __name__ == "__main__":
    sys.exit(main())
