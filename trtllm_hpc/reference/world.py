"""One rank's place among the others, and how it ends when something is wrong.

The rank supervisor starts one Triton server for each rank and says by
environment variables who is who. This code runs in the stub process of the
``tensorrt_llm`` model, a child of that server.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import write_text

RANK_FAILURE = "TRTLLM_HPC_RANK_FAILURE"
"""Environment variable: the text file in which a rank says why it had to die."""

RENDEZVOUS_TIMEOUT_S = 600.0
"""Bound for all ranks to come together and to load; also that of one collective of the model."""

SERVER_START_S = 30.0
"""Bound for a server to begin to listen to signals once its models are loaded."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class World:
    """Who this rank is."""

    rank: int
    size: int
    local_rank: int
    failure_file: Path | None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> World:
        """Read RANK, WORLD_SIZE and LOCAL_RANK; a server started by hand without them is a world of one.

        Raises:
            StartFailed: they are no numbers, or contradict each other, or the
                address of the first rank is missing.
        """
        try:
            rank, size, local_rank = (
                int(environ.get(name, default))
                for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
            )
        except ValueError as error:
            raise StartFailed(f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers: {error}.") from error
        if not 0 <= rank < size or local_rank < 0:
            raise StartFailed(
                f"RANK={rank}, WORLD_SIZE={size}, LOCAL_RANK={local_rank} is no possible world."
            )
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if size > 1 and not environ.get(name)]
        if missing:
            raise StartFailed(f"A world of {size} ranks needs {' and '.join(missing)} in the environment.")
        failure = environ.get(RANK_FAILURE)
        return cls(rank, size, local_rank, Path(failure) if failure else None)

    @property
    def is_leader(self) -> bool:
        """Whether this rank takes requests."""
        return self.rank == 0

    def connect(self) -> None:
        """Join the other ranks: gloo between CPUs, NCCL between GPUs. Nothing to do for a world of one.

        Raises:
            StartFailed: the ranks did not come together in time.
        """
        if self.size == 1:
            return
        import torch
        import torch.distributed as dist

        if torch.cuda.is_available():
            # With one visible GPU a task the local rank is no device index.
            device = self.local_rank % torch.cuda.device_count()
            os.environ["LOCAL_RANK"] = str(device)
            torch.cuda.set_device(device)
            backend = "cpu:gloo,cuda:nccl"
        else:
            backend = "gloo"
        try:
            dist.init_process_group(
                backend,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=RENDEZVOUS_TIMEOUT_S),
            )
        except RuntimeError as error:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise StartFailed(f"The ranks did not come together at {address}: {first_line(error)}") from error

    def refuse_restart(self) -> None:
        """Remember that this server has started its model; end it if it had before.

        Triton starts a model's process anew when it dies. In a world of
        several ranks the new one could only wait for peers that are gone.
        """
        if self.size == 1 or self.failure_file is None:
            return
        marker = self.failure_file.with_name(self.failure_file.name + ".started")
        server = _identity(os.getppid())
        try:
            earlier = marker.read_text(encoding="utf-8")
        except FileNotFoundError:
            earlier = ""
        if earlier == server:
            self.die(f"The model's process of rank {self.rank} died; the ranks cannot come together again.")
        write_text(marker, server)

    @contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Pass every error on, and leave its first line for the rank supervisor."""
        try:
            yield
        except Exception as error:
            self._report(f"Rank {self.rank} did not start: {first_line(error)}")
            raise

    def _report(self, sentence: str) -> None:
        _log.error("rank %d: %s", self.rank, sentence)
        if self.failure_file is not None:
            write_text(self.failure_file, sentence + "\n")

    def die(self, sentence: str) -> NoReturn:
        """End this rank for good: a server that lost a rank must not go on answering.

        The server is killed and not asked: a polite end waits for requests
        that nobody will finish.
        """
        self._report(sentence)
        _signal_server(signal.SIGKILL)
        os._exit(1)


def stop_server_when_started() -> None:
    """End the Triton server with exit code 0, from a thread, soon after the model's ``initialize`` returns.

    While a server loads its models SIGTERM would kill it; only afterwards it
    catches the signal and ends in order.
    """

    def stop() -> None:
        deadline = time.monotonic() + SERVER_START_S
        while not _catches(os.getppid(), signal.SIGTERM) and time.monotonic() < deadline:
            time.sleep(0.05)
        _signal_server(signal.SIGTERM)

    threading.Thread(target=stop, name="stop-server", daemon=True).start()


def _signal_server(number: signal.Signals) -> None:
    """Send a signal to the Triton server whose child this process is, if it is one."""
    parent = os.getppid()
    if _command(parent) == "tritonserver":
        os.kill(parent, number)


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for a signal (``SigCgt`` in proc(5))."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << (number - 1))


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or the name of its class if it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _identity(pid: int) -> str:
    """Process id and start time, which together name one process since the machine's boot."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    start_ticks = stat.rpartition(")")[2].split()[19]
    return f"{pid} {start_ticks}"
