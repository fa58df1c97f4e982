"""Notices within seconds that another rank is gone, whatever this rank waits for.

Between CPUs a collective raises an error when a peer's connection closes.
Between GPUs it raises none: NCCL's kernels wait on the device for a peer that
is gone, and the host waits for the kernels. So a thread of its own keeps in
touch with the other ranks, over a group of its own between CPUs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

LOOK_EVERY_S = 0.5
"""Seconds between two meetings of all ranks; a rank that died is missed at the next one."""


class Peers:
    """The other ranks of this world.

    Args:
        group: a process group of gloo that nothing else uses. Its timeout is
            how long a rank may be silent.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._is_leaving = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, on_lost: Callable[[RuntimeError], object]) -> None:
        """Begin to keep in touch. All ranks do, and from a thread ``on_lost`` is told of the first loss."""
        self._thread = threading.Thread(target=self._run, args=(on_lost,), name="peers", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """End it in order, together with all other ranks. Collective."""
        self._is_leaving.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, on_lost: Callable[[RuntimeError], object]) -> None:
        try:
            while not self._all_leave():
                self._is_leaving.wait(LOOK_EVERY_S)
        except RuntimeError as error:
            # Of ranks that leave, the first to be done may close its connections under the others.
            if not self._is_leaving.is_set():
                on_lost(error)

    def _all_leave(self) -> bool:
        import torch
        import torch.distributed as dist

        leaving = torch.tensor([int(self._is_leaving.is_set())])
        dist.all_reduce(leaving, op=dist.ReduceOp.MIN, group=self._group)
        return bool(leaving.item())
