"""A rank's number, and its connections to the other ranks.

The rank supervisor starts one Triton server for each rank and passes its number in environment variables. The
connections need no PyTorch, so that an engine without a model is ready at once.
"""

from __future__ import annotations

import os
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_hpc.errors import StartFailed

if TYPE_CHECKING:
    import torch

RANK_FAILURE = "TRTLLM_HPC_RANK_FAILURE"
"""Environment variable: the text file in which a rank writes why it had to end."""

RENDEZVOUS = "TRTLLM_HPC_RENDEZVOUS"
"""Environment variable: a folder of this start that no other user can enter.

Its file ``key`` is a secret of the ranks, and torch's store is a file there.
"""

RENDEZVOUS_TIMEOUT_S = 600.0
"""Time limit for all ranks to connect and to load, and for one collective of the model."""


@dataclass(frozen=True)
class World:
    """This rank and the number of all ranks."""

    rank: int
    size: int
    local_rank: int
    failure_file: Path | None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> World:
        """Read RANK, WORLD_SIZE and LOCAL_RANK; without them, this is the only rank.

        Raises StartFailed if they are not numbers or contradict each other, or the address of rank 0
        or the folder of the rendezvous is missing.
        """
        try:
            rank, size, local_rank = (
                int(environ.get(name, default))
                for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
            )
        except ValueError as error:
            raise StartFailed(f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers: {error}.") from error
        if not 0 <= rank < size or local_rank < 0:
            raise StartFailed(f"RANK={rank}, LOCAL_RANK={local_rank} cannot be in WORLD_SIZE={size}.")
        names = ("MASTER_ADDR", "MASTER_PORT", RENDEZVOUS)
        missing = [name for name in names if size > 1 and not environ.get(name)]
        if missing:
            raise StartFailed(f"A world of {size} ranks needs {' and '.join(missing)} in the environment.")
        failure = environ.get(RANK_FAILURE)
        return cls(rank, size, local_rank, Path(failure) if failure else None)

    @property
    def is_leader(self) -> bool:
        """Whether this rank takes requests."""
        return self.rank == 0

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at which rank 0 waits for the others."""
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    @property
    def key(self) -> bytes:
        """The ranks' secret."""
        return (Path(os.environ[RENDEZVOUS]) / "key").read_bytes()

    def join(self) -> None:
        """Make torch's collectives possible between the ranks, if any: gloo between CPUs, NCCL between GPUs.

        Raises StartFailed if the ranks did not connect in time.
        """
        if self.size == 1:
            return
        import torch
        import torch.distributed as dist
        from torch.distributed import FileStore  # type: ignore[attr-defined]

        if torch.cuda.is_available():
            # If each task sees one GPU only, the local rank is not a device index.
            device = self.local_rank % torch.cuda.device_count()
            os.environ["LOCAL_RANK"] = str(device)
            torch.cuda.set_device(device)
            backend = "cpu:gloo,cuda:nccl"
        else:
            backend = "gloo"
        file, timeout = Path(os.environ[RENDEZVOUS]) / "store", timedelta(seconds=RENDEZVOUS_TIMEOUT_S)
        try:
            # Not TCPStore, which listens on every interface and asks nobody for a key.
            store = FileStore(str(file), self.size)
            store.set_timeout(timeout)
            dist.init_process_group(
                backend, store=store, rank=self.rank, world_size=self.size, timeout=timeout
            )
        except RuntimeError as error:
            raise StartFailed(f"The ranks did not connect through {file}: {error}") from error


def rank_device() -> torch.device:
    """This rank's GPU, once it is connected, or the CPU where there is none."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


GREETING_TIMEOUT_S = 10
"""Time limit for rank 0 to greet a rank that has connected."""

_KEEPALIVE = {socket.TCP_NODELAY: 1, socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}
"""Options (tcp(7)): no step waits for another, and a host that vanished is noticed after 30 s."""


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

    def send(self, message: bytes) -> None:
        """Leader: send a message to all other ranks; an empty one stops them."""
        if not message:
            # Now, and not when this rank closes: another may have left before that.
            self._is_leaving.set()
        for connection in self._others.values():
            connection.send_bytes(message)

    def receive(self) -> bytes:
        """Other ranks: wait for the leader's next message."""
        message = self._hear(0)
        if not message:
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
    """Rank 0: wait for all others. Who does not know the secret is let go, and waits in a thread until then."""
    others: dict[int, Connection] = {}
    greeted: queue.SimpleQueue[tuple[int, Connection]] = queue.SimpleQueue()
    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT_S

    def greet(connection: Connection) -> None:
        with suppress(EOFError, OSError, AuthenticationError, struct.error):
            deliver_challenge(connection, world.key)
            answer_challenge(connection, world.key)
            greeted.put((struct.unpack("!I", connection.recv_bytes(4))[0], connection))
            return
        connection.close()

    def listen() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=greet, args=(_connection(listener.accept()[0]),), daemon=True).start()

    try:
        with socket.create_server(world.address, backlog=world.size + 64) as listener:
            threading.Thread(target=listen, daemon=True).start()
            while len(others) < world.size - 1:
                rank, connection = greeted.get(timeout=max(0.0, deadline - time.monotonic()))
                others[rank] = connection
            # Wakes the thread that accepts.
            listener.shutdown(socket.SHUT_RDWR)
    except queue.Empty:
        raise _not_connected(world, f"{world.size - 1 - len(others)} ranks are missing") from None
    except OSError as error:
        raise _not_connected(world, error) from error
    return others


def _connect(world: World) -> Connection:
    """Other ranks: connect to rank 0, which may listen later and proves itself, too."""
    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT_S
    while True:
        try:
            connection = _connection(socket.create_connection(world.address, timeout=GREETING_TIMEOUT_S))
            if not connection.poll(GREETING_TIMEOUT_S):
                raise TimeoutError("rank 0 did not greet this rank")
            answer_challenge(connection, world.key)
            deliver_challenge(connection, world.key)
            connection.send_bytes(struct.pack("!I", world.rank))
            return connection
        except (EOFError, OSError, AuthenticationError) as error:
            if time.monotonic() > deadline:
                raise _not_connected(world, error) from error
            time.sleep(0.1)


def _connection(opened: socket.socket) -> Connection:
    opened.setblocking(True)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return Connection(opened.detach())


def _not_connected(world: World, error: object) -> StartFailed:
    host, port = world.address
    return StartFailed(f"The ranks did not connect at {host}:{port}: {error}.")
