"""Connects the ranks of an engine: passes on the leader's steps, and notices when a rank is gone.

It needs no PyTorch, so that an engine without a model is ready at once.
"""

from __future__ import annotations

import pickle
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.reference.world import RENDEZVOUS_TIMEOUT_S, World

_KEEPALIVE = {
    socket.TCP_NODELAY: 1,
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 4,
}
"""Options of a connection (tcp(7)): no step waits for another, and a host that has vanished is noticed after
30 s. A process that has died is noticed at once."""


class Channel:
    """Connections between rank 0 and each other rank; nothing is connected in a world of one rank.

    Raises StartFailed if the ranks did not connect in time.
    """

    def __init__(self, world: World) -> None:
        self._is_leaving = threading.Event()
        self._is_leader = world.is_leader
        self._others: Mapping[int, Connection] = {}
        if world.size > 1:
            self._others = _accept(world) if world.is_leader else {0: _connect(world)}

    def watch(self, on_lost: Callable[[RuntimeError], object]) -> None:
        """Call ``on_lost`` from another thread when the first rank is lost, whatever this one waits for.

        A collective between GPUs raises no error then: NCCL's kernels wait on the device for a rank that is
        gone, and the host waits for the kernels.
        """
        if self._others:
            threading.Thread(target=self._look, args=(on_lost,), name="ranks", daemon=True).start()

    def send(self, message: Any) -> None:
        """Leader: send a message to all other ranks; ``None`` stops them."""
        if message is None:
            # Now, and not when this rank closes: another may have left before that.
            self._is_leaving.set()
        content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        for connection in self._others.values():
            connection.send_bytes(content)

    def receive(self) -> Any:
        """Other ranks: wait for the leader's next message."""
        # pickle is safe here: the sender is rank 0 of the same job.
        message = pickle.loads(self._hear(0))
        if message is None:
            self._is_leaving.set()
        return message

    def gather(self) -> None:
        """Leader: wait for a sign of each other rank; the others send it. Collective."""
        if not self._is_leader:
            self._others[0].send_bytes(b"here")
            return
        for rank in self._others:
            self._hear(rank)

    def close(self) -> None:
        """Leave, together with the other ranks. Collective."""
        self._is_leaving.set()
        for connection in self._others.values():
            if self._is_leader:
                # The others leave first, so that none of them takes the leader's end for a loss.
                with suppress(EOFError, OSError):
                    connection.recv_bytes()
            connection.close()

    def _hear(self, rank: int) -> bytes:
        try:
            return self._others[rank].recv_bytes()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"the connection to rank {rank} was closed") from error

    def _look(self, on_lost: Callable[[RuntimeError], object]) -> None:
        poller = select.poll()
        ranks = {connection.fileno(): rank for rank, connection in self._others.items()}
        for handle in ranks:
            poller.register(handle, select.POLLRDHUP)
        closed = poller.poll()
        if not self._is_leaving.is_set():
            on_lost(RuntimeError(f"the connection to rank {ranks[closed[0][0]]} was closed"))


def _accept(world: World) -> dict[int, Connection]:
    """Rank 0: wait for all others; each sends its rank first."""
    others: dict[int, Connection] = {}
    try:
        with socket.create_server(("", world.address[1])) as listener:
            listener.settimeout(RENDEZVOUS_TIMEOUT_S)
            while len(others) < world.size - 1:
                connection = _connection(listener.accept()[0])
                others[int(connection.recv_bytes())] = connection
    except OSError as error:
        raise _not_connected(world, error) from error
    return others


def _connect(world: World) -> Connection:
    """Other ranks: connect to rank 0, which may listen later."""
    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT_S
    while True:
        try:
            connection = _connection(socket.create_connection(world.address, timeout=10))
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise _not_connected(world, error) from error
            time.sleep(0.1)
    connection.send_bytes(str(world.rank).encode())
    return connection


def _connection(opened: socket.socket) -> Connection:
    opened.setblocking(True)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return Connection(opened.detach())


def _not_connected(world: World, error: OSError) -> StartFailed:
    host, port = world.address
    return StartFailed(f"The ranks did not connect at {host}:{port}: {error}")
