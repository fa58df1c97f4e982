"""A rank: its number, its connections to the other ranks, and the end of its server.

Number and connections come from the environment that the rank supervisor sets. The connections do not need
PyTorch, so that an engine without a model is ready at once. This code runs in the stub process of the
``tensorrt_llm`` model, a child of its rank's Triton server, which ends in order, or at once when the rank
cannot continue.
"""

from __future__ import annotations

import logging
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import NoReturn

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import write_text
from trtllm_hpc.reference import watchdog
from trtllm_hpc.reference.engine_folder import plain_path

RANK_FAILURE = "TRTLLM_HPC_RANK_FAILURE"
"""Environment variable with the path of the text file in which a rank writes why it had to end."""

RENDEZVOUS = "TRTLLM_HPC_RENDEZVOUS"
"""Environment variable with the path of this start's folder, which no other user can enter.

The folder contains ``key``, a secret of the ranks, and torch's store.
"""

RENDEZVOUS_TIMEOUT_S = 600.0
"""Seconds for all ranks to connect and to load, and for one collective of the model."""

GREETING_TIMEOUT_S = 10
"""Seconds in which the other end of a connection must prove that it knows the secret."""

_NO_GREETING = (EOFError, OSError, AuthenticationError, AssertionError, struct.error)
"""Exceptions of a connection whose other end is not a rank of this start."""


@dataclass(frozen=True)
class World:
    """This rank and the number of all ranks."""

    rank: int
    size: int
    local_rank: int
    failure_file: Path | None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> World:
        """Read the rank supervisor's variables; without them, this is the only rank."""
        rank, size, local_rank = (
            int(environ.get(name) or default)
            for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
        )
        failure = environ.get(RANK_FAILURE)
        return cls(rank, size, local_rank, Path(failure) if failure else None)

    @property
    def is_leader(self) -> bool:
        """Whether this rank accepts requests."""
        return self.rank == 0

    @property
    def meeting(self) -> Path:
        """The folder of this start."""
        return Path(os.environ[RENDEZVOUS])

    def join(self) -> None:
        """Connect the ranks for torch's collectives: gloo between CPUs, NCCL between GPUs.

        Raises StartFailed if the ranks did not connect in time.
        """
        import torch
        import torch.distributed as dist
        from torch.distributed import FileStore  # type: ignore[attr-defined]

        backend, timeout = "gloo", timedelta(seconds=RENDEZVOUS_TIMEOUT_S)
        if torch.cuda.is_available():
            # If each task sees one GPU only, the local rank is not a device index.
            device = self.local_rank % torch.cuda.device_count()
            os.environ["LOCAL_RANK"] = str(device)
            torch.cuda.set_device(device)
            backend = "cpu:gloo,cuda:nccl"
        try:
            # FileStore, because TCPStore listens on every interface and does not require a key.
            store = FileStore(plain_path(os.fsencode(self.meeting).decode()) + "/store", self.size)
            store.set_timeout(timeout)
            dist.init_process_group(
                backend, store=store, rank=self.rank, world_size=self.size, timeout=timeout
            )
        except RuntimeError as error:
            raise StartFailed(f"The ranks did not connect through {self.meeting}: {error}") from error


class Channel:
    """Connections between rank 0 and each other rank; nothing is connected in a world of one rank.

    Raises StartFailed if the ranks did not connect in time.
    """

    def __init__(self, world: World) -> None:
        self._is_leaving = threading.Event()
        self._world = world
        self._others: Mapping[int, Connection] = {}
        if world.size > 1:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            connect = _accept if world.is_leader else _connect
            try:
                self._others = connect(world, (host, port))
            except OSError as error:
                raise StartFailed(f"The ranks did not connect at {host}:{port}: {error}.") from error

    def watch(self, die: Callable[[str], object]) -> None:
        """Call ``die`` with a sentence from another thread when the first rank is lost."""
        if self._others:
            threading.Thread(target=self._look, args=(die,), name="ranks", daemon=True).start()

    def send(self, message: bytes) -> None:
        """Send a message from the leader to all other ranks; an empty message stops them."""
        if not message:
            # Set here and not in close(), because another rank may leave before this one closes.
            self._is_leaving.set()
        for connection in self._others.values():
            connection.send_bytes(message)

    def receive(self) -> bytes:
        """Wait for the leader's next message (other ranks)."""
        message = self._others[0].recv_bytes()
        if not message:
            self._is_leaving.set()
        return message

    def gather(self) -> None:
        """Wait for a message of each other rank (leader), or send that message (other ranks). Collective."""
        for connection in self._others.values():
            connection.recv_bytes() if self._world.is_leader else connection.send_bytes(b"here")

    def close(self) -> None:
        """Leave, together with the other ranks. Collective."""
        self._is_leaving.set()
        for connection in self._others.values():
            if self._world.is_leader:
                # The others leave first, so that none of them mistakes the leader's end for a lost rank.
                with suppress(EOFError, OSError):
                    connection.recv_bytes()
            connection.close()

    def _look(self, die: Callable[[str], object]) -> None:
        poller = select.poll()
        ranks = {connection.fileno(): rank for rank, connection in self._others.items()}
        for handle in ranks:
            poller.register(handle, select.POLLRDHUP)
        lost = ranks[poller.poll()[0][0]]
        if not self._is_leaving.is_set():
            die(f"Rank {self._world.rank} lost another rank: the connection to rank {lost} was closed.")


def _accept(world: World, address: tuple[str, int]) -> dict[int, Connection]:
    """Wait for all other ranks (rank 0); both ends first prove that they know the ranks' secret."""
    others: dict[int, Connection] = {}
    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT_S
    with socket.create_server(address, backlog=world.size + 64) as listener:
        while len(others) < world.size - 1:
            listener.settimeout(max(0.1, deadline - time.monotonic()))
            opened, _ = listener.accept()
            with suppress(*_NO_GREETING):
                connection = _greeted(opened, world, deliver_challenge, answer_challenge)
                others[struct.unpack("!I", connection.recv_bytes(4))[0]] = connection
    return others


def _connect(world: World, address: tuple[str, int]) -> dict[int, Connection]:
    """Connect to rank 0, which may start to listen later (other ranks)."""
    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT_S
    while True:
        try:
            opened = socket.create_connection(address, timeout=GREETING_TIMEOUT_S)
            connection = _greeted(opened, world, answer_challenge, deliver_challenge)
            connection.send_bytes(struct.pack("!I", world.rank))
            return {0: connection}
        except _NO_GREETING as error:
            if time.monotonic() > deadline:
                raise OSError(f"rank 0 has not proved itself ({error})") from error
            time.sleep(0.1)


def _greeted(
    opened: socket.socket, world: World, *steps: Callable[[Connection, bytes], object]
) -> Connection:
    """Return a connection whose ends have proved to each other that they know the secret."""
    opened.setblocking(True)
    limit, none = struct.pack("ll", GREETING_TIMEOUT_S, 0), struct.pack("ll", 0, 0)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection = Connection(os.dup(opened.fileno()))
    try:
        with opened:
            for step in steps:
                step(connection, (world.meeting / "key").read_bytes())
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, none)
    except BaseException:  # whatever ends the greeting, the connection must not stay open
        connection.close()
        raise
    return connection


SERVER_START_S = 30.0
"""Seconds in which a server must install its signal handlers after its models are loaded."""

_log = logging.getLogger(__name__)


class Shutdown:
    """Ends this rank's server when its model ends.

    If the process of a model is killed, Triton continues to answer and reports that it is ready, so a
    watchdog kills the server.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        # Here sys.executable is Triton's stub; the stub itself runs the first python3 on PATH.
        python = shutil.which("python3") or "python3"
        sentence = f"The model's process of rank {world.rank} was killed or crashed."
        arguments = [str(os.getppid()), sentence, str(world.failure_file or "")]
        command = [python, "-I", watchdog.__file__, *arguments]
        self._watchdog = subprocess.Popen(command, stdin=subprocess.PIPE)

    @contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Write the first sentence of any error for the supervisor, and raise the error to end Triton."""
        try:
            yield
        except Exception as error:  # re-raised below, whatever it is
            self._report(f"Rank {self._world.rank} did not start: {first_sentence(error)}")
            self.release()
            raise

    def release(self) -> None:
        """End the watchdog, so that the end of this process does not kill the server."""
        pipe = self._watchdog.stdin
        assert pipe is not None
        if not pipe.closed:
            # The watchdog may have ended already.
            with suppress(BrokenPipeError), pipe:
                pipe.write(watchdog.RELEASE)
            self._watchdog.wait()

    def die(self, sentence: str) -> NoReturn:
        """End this process and its server, because a server that lost a rank must not continue to answer.

        The server gets SIGKILL: an orderly end would wait for requests that no rank will finish.
        """
        self._report(sentence)
        self.release()
        watchdog.signal_server(os.getppid(), signal.SIGKILL)
        os._exit(1)

    def _report(self, sentence: str) -> None:
        _log.error("%s", sentence)
        if self._world.failure_file is not None:
            # The server must end even if the disk is full.
            with suppress(OSError):
                write_text(self._world.failure_file, sentence + "\n")


def stop_server_when_started() -> None:
    """End the Triton server with exit code 0, from a thread, after the model's ``initialize`` has returned.

    SIGTERM kills a server that is still loading its models; after loading, the server handles the signal and
    ends in order.
    """

    def stop() -> None:
        deadline = time.monotonic() + SERVER_START_S
        is_handled = False  # ``SigCgt`` in proc(5)
        while not is_handled and time.monotonic() < deadline:
            with suppress(OSError):
                status = Path(f"/proc/{os.getppid()}/status").read_text(encoding="utf-8")
                caught = int(status.partition("SigCgt:")[2].split()[0], 16)
                is_handled = bool(caught & 1 << (signal.SIGTERM - 1))
            time.sleep(0.05)
        watchdog.signal_server(os.getppid(), signal.SIGTERM)

    threading.Thread(target=stop, name="stop-server", daemon=True).start()


def first_sentence(error: BaseException) -> str:
    """Return the first sentence of an error without gloo's source position, or its class if it is empty."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[[^\]]*:\d+\] ", "", lines[0]).split(". ")[0].rstrip(".") + "."
