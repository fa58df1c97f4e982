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

LOST_AFTER_S = 30.0
"""A rank without a heartbeat for this long is lost; a dead one is noticed at the next heartbeat."""

IDLE_AT_MOST = timedelta(days=365)
"""Any time may pass between two steps; the heartbeats show lost ranks."""

_FIRST_BYTES = 4096
"""A step of up to this size needs one broadcast; nearly all are smaller."""


class Channel:
    """Broadcasts from rank 0 to all others; does nothing in a world of one rank.

    Made after all ranks have loaded, because from then on they run in step.
    """

    def __init__(self, world: World) -> None:
        self._group: Any = None
        self._is_leaving = threading.Event()
        self._heartbeat: threading.Thread | None = None
        if world.size > 1:
            dist.barrier()
            self._group = dist.new_group(backend="gloo", timeout=IDLE_AT_MOST)
            self._heartbeat_group = dist.new_group(backend="gloo", timeout=timedelta(seconds=LOST_AFTER_S))

    def watch(self, on_lost: Callable[[RuntimeError], object]) -> None:
        """Call ``on_lost`` from another thread when the first rank is lost, whatever this one waits for.

        Between CPUs a collective raises an error when a peer's connection closes. Between GPUs it does not:
        NCCL's kernels wait on the device for a peer that is gone, and the host waits for the kernels. So a
        thread exchanges messages with the other ranks over a process group of its own, on CPUs.
        """
        if self._group is not None:
            self._heartbeat = threading.Thread(
                target=self._beat, args=(on_lost,), name="heartbeat", daemon=True
            )
            self._heartbeat.start()

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
        return number if self._group is None else _lowest(number, self._group)

    def close(self) -> None:
        """Leave the group, together with the other ranks. Collective."""
        self._is_leaving.set()
        if self._heartbeat is not None:
            self._heartbeat.join()
        if self._group is not None:
            dist.destroy_process_group()

    def _beat(self, on_lost: Callable[[RuntimeError], object]) -> None:
        try:
            while not _lowest(int(self._is_leaving.is_set()), self._heartbeat_group):
                self._is_leaving.wait(HEARTBEAT_S)
        except RuntimeError as error:
            # When all ranks leave, the first one may close its connections before the others are done.
            if not self._is_leaving.is_set():
                on_lost(error)

    def _broadcast(self, message: bytes | None) -> bytes:
        """Send a message, or receive one if ``None``: its length and beginning first, then the rest."""
        sent = b"" if message is None else len(message).to_bytes(8, "little") + message
        first = self._exchange(sent[:_FIRST_BYTES], _FIRST_BYTES)
        end = 8 + int.from_bytes(first[:8], "little")
        if end <= _FIRST_BYTES:
            return first[8:end]
        return first[8:] + self._exchange(sent[_FIRST_BYTES:], end - _FIRST_BYTES)

    def _exchange(self, sent: bytes, size: int) -> bytes:
        """Rank 0's ``size`` bytes, with zeros after what it has sent."""
        buffer = torch.frombuffer(bytearray(sent.ljust(size, b"\0")), dtype=torch.uint8)
        dist.broadcast(buffer, src=0, group=self._group)
        return buffer.numpy().tobytes()


def _lowest(number: int, group: Any) -> int:
    value = torch.tensor([number], dtype=torch.int64)
    dist.all_reduce(value, op=dist.ReduceOp.MIN, group=group)
    return int(value.item())
