"""Sends the leader's steps to the other ranks, and notices when a rank is gone."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trtllm_hpc.reference.scheduler import Step
from trtllm_hpc.reference.world import World

HEARTBEAT_S = 0.5
"""Seconds between two heartbeats; a dead rank is noticed at the next one."""


class Heartbeat:
    """Notices within seconds that another rank is gone, whatever this rank waits for.

    Between CPUs a collective raises an error when a peer's connection closes.
    Between GPUs it does not: NCCL's kernels wait on the device for a peer that
    is gone, and the host waits for the kernels. So a thread exchanges
    messages with the other ranks over a process group of its own, on CPUs.

    Args:
        group: a process group of gloo that nothing else uses. Its timeout is
            how long a rank may be silent.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._is_leaving = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, on_lost: Callable[[RuntimeError], object]) -> None:
        """Start the thread, on all ranks. It calls ``on_lost`` when the first rank is lost."""
        self._thread = threading.Thread(target=self._run, args=(on_lost,), name="heartbeat", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """End the thread, together with those of all other ranks. Collective."""
        self._is_leaving.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, on_lost: Callable[[RuntimeError], object]) -> None:
        try:
            while not self._all_leave():
                self._is_leaving.wait(HEARTBEAT_S)
        except RuntimeError as error:
            # When all ranks leave, the first one may close its connections before the others are done.
            if not self._is_leaving.is_set():
                on_lost(error)

    def _all_leave(self) -> bool:
        leaving = torch.tensor([int(self._is_leaving.is_set())])
        dist.all_reduce(leaving, op=dist.ReduceOp.MIN, group=self._group)
        return bool(leaving.item())


LOST_AFTER_S = 30.0
"""A rank without a heartbeat for this long is lost; a dead one is noticed at the next heartbeat."""

IDLE_AT_MOST = timedelta(days=365)
"""Any time may pass between two steps; ``Heartbeat`` notices lost ranks."""

_FIRST_BYTES = 4096
"""A step of up to this size needs one broadcast; nearly all are smaller."""


class Channel:
    """Broadcasts from rank 0 to all others; does nothing in a world of one rank.

    Made after all ranks have loaded, because from then on they run in step.
    """

    def __init__(self, world: World) -> None:
        self._group: Any = None
        self._heartbeat: Heartbeat | None = None
        if world.size > 1:
            dist.barrier()
            self._group = dist.new_group(backend="gloo", timeout=IDLE_AT_MOST)
            self._heartbeat = Heartbeat(
                dist.new_group(backend="gloo", timeout=timedelta(seconds=LOST_AFTER_S))
            )

    def watch(self, on_lost: Callable[[RuntimeError], object]) -> None:
        """Call ``on_lost`` from another thread when a rank is lost, even while this one waits for its GPU."""
        if self._heartbeat is not None:
            self._heartbeat.watch(on_lost)

    def send(self, step: Step | None) -> None:
        """Leader: send a step to all other ranks; ``None`` stops them."""
        if self._group is not None:
            self._broadcast(pickle.dumps(step, protocol=pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Step | None:
        """Other ranks: wait for the leader's next step."""
        # pickle is safe here: the sender is rank 0 of the same job, in a group that only its ranks can join.
        step: Step | None = pickle.loads(self._broadcast(None))
        return step

    def lowest(self, number: int) -> int:
        """The smallest number of all ranks. Collective."""
        if self._group is None:
            return number
        value = torch.tensor([number], dtype=torch.int64)
        dist.all_reduce(value, op=dist.ReduceOp.MIN, group=self._group)
        return int(value.item())

    def close(self) -> None:
        """Leave the group, together with the other ranks. Collective."""
        if self._heartbeat is not None:
            self._heartbeat.leave()
            dist.destroy_process_group()

    def _broadcast(self, message: bytes | None) -> bytes:
        """Send a message, or receive one if ``None``: its length and beginning first, then the rest."""
        first = torch.zeros(_FIRST_BYTES, dtype=torch.uint8)
        if message is not None:
            first[:8] = torch.tensor(list(len(message).to_bytes(8, "little")), dtype=torch.uint8)
            beginning = message[: _FIRST_BYTES - 8]
            first[8 : 8 + len(beginning)] = torch.frombuffer(bytearray(beginning), dtype=torch.uint8)
        dist.broadcast(first, src=0, group=self._group)
        received = first.numpy().tobytes()
        length = int.from_bytes(received[:8], "little")
        missing = length - (_FIRST_BYTES - 8)
        if missing <= 0:
            return received[8 : 8 + length]
        rest = torch.zeros(missing, dtype=torch.uint8)
        if message is not None:
            rest = torch.frombuffer(bytearray(message[_FIRST_BYTES - 8 :]), dtype=torch.uint8)
        dist.broadcast(rest, src=0, group=self._group)
        return received[8:] + rest.numpy().tobytes()
