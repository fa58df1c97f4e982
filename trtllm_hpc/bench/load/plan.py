"""What is to be loaded and how, and the parts that work together on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trtllm_hpc.bench.load.clock import Clock
from trtllm_hpc.bench.load.replies import Reply
from trtllm_hpc.bench.load.target import Target


@dataclass(frozen=True)
class OpenPlan:
    """Each payload at its time."""

    target: Target
    payloads: Sequence[bytes]
    indices: range
    """Index in the workload of each payload."""
    clock: Clock
    start_s: float | None
    due_s: Sequence[float]


@dataclass(frozen=True)
class ClosedPlan:
    """So many requests outstanding."""

    target: Target
    payloads: Sequence[bytes]
    indices: range
    """Index in the workload of each payload."""
    clock: Clock
    start_s: float | None
    concurrency: int
    count: int | None
    until_s: float | None


Plan = OpenPlan | ClosedPlan

Control = Callable[[Callable[[], object]], float]
"""Called once there is a connection, with a function that ends the load from any thread: tells the start."""


class Counter(Protocol):
    """Who is told of each answer, at once: it must be quick."""

    def count(self, ok: bool, latency_s: float) -> None:
        """One more request has ended, so long after it was due."""


class Calls(Protocol):
    """The requests of one protocol to one server."""

    async def connect(self) -> None:
        """Be ready to send. Raises NotReady."""

    def send(self, reply: Reply, payload: bytes) -> None:
        """Begin a request that is noted in ``reply``."""

    def flush(self) -> None:
        """Send what is only queued."""

    async def close(self) -> None:
        """Leave at once."""
