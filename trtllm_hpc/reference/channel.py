"""The leader's commands on their way to the other ranks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from trtllm_hpc.reference.peers import Peers
from trtllm_hpc.reference.steps import Command
from trtllm_hpc.reference.world import World

LOST_AFTER_S = 30.0
"""A rank that misses the meetings of ``Peers`` this long is lost; one that died is missed at the next one."""

IDLE_AT_MOST = timedelta(days=365)
"""Between two commands any time may pass; that the ranks are there is for ``Peers`` to see."""

_FIRST_BYTES = 4096
"""A command of up to this size travels in one broadcast, as nearly all do."""


class Channel:
    """A broadcast from rank 0; a world of one has nobody to tell.

    Made after all ranks have loaded, because only from then on the ranks keep
    pace with each other.
    """

    def __init__(self, world: World) -> None:
        self._group: Any = None
        self._peers: Peers | None = None
        if world.size > 1:
            import torch.distributed as dist

            dist.barrier()
            self._group = dist.new_group(backend="gloo", timeout=IDLE_AT_MOST)
            self._peers = Peers(dist.new_group(backend="gloo", timeout=timedelta(seconds=LOST_AFTER_S)))

    def watch(self, on_lost: Callable[[RuntimeError], object]) -> None:
        """Be told from another thread when a rank is lost, even while this one waits for its GPU."""
        if self._peers is not None:
            self._peers.watch(on_lost)

    def tell(self, command: Command) -> None:
        """Leader: send a command to all other ranks."""
        if self._group is not None:
            self._broadcast(pickle.dumps(command, protocol=pickle.HIGHEST_PROTOCOL))

    def listen(self) -> Command:
        """Other ranks: wait for the leader's next command."""
        # The sender is rank 0 of the same job, in a group that only its ranks can join.
        command: Command = pickle.loads(self._broadcast(None))
        return command

    def lowest(self, number: int) -> int:
        """The smallest number that any rank names. Collective."""
        if self._group is None:
            return number
        import torch
        import torch.distributed as dist

        value = torch.tensor([number], dtype=torch.int64)
        dist.all_reduce(value, op=dist.ReduceOp.MIN, group=self._group)
        return int(value.item())

    def close(self) -> None:
        """Leave the other ranks in order. Collective."""
        if self._peers is not None:
            import torch.distributed as dist

            self._peers.leave()
            dist.destroy_process_group()

    def _broadcast(self, message: bytes | None) -> bytes:
        """Send a message, or receive one if there is none: its length and its beginning, then the rest."""
        import torch
        import torch.distributed as dist

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
