"""A rank's number and its connection to the other ranks.

The rank supervisor starts one Triton server for each rank and passes its number in environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from trtllm_hpc.reference.channel import Channel

from trtllm_hpc.errors import StartFailed

RANK_FAILURE = "TRTLLM_HPC_RANK_FAILURE"
"""Environment variable: the text file in which a rank writes why it had to end."""

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

        Raises StartFailed if they are not numbers or contradict each other, or the address of rank 0 is
        missing.
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
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if size > 1 and not environ.get(name)]
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

    def join(self, channel: Channel) -> None:
        """Make torch's collectives possible between the ranks, if any: gloo between CPUs, NCCL between GPUs.

        Raises StartFailed if the ranks did not connect in time.
        """
        if self.size == 1:
            return
        import torch
        import torch.distributed as dist
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        if torch.cuda.is_available():
            # If each task sees one GPU only, the local rank is not a device index.
            device = self.local_rank % torch.cuda.device_count()
            os.environ["LOCAL_RANK"] = str(device)
            torch.cuda.set_device(device)
            backend = "cpu:gloo,cuda:nccl"
        else:
            backend = "gloo"
        host, timeout = self.address[0], timedelta(seconds=RENDEZVOUS_TIMEOUT_S)
        try:
            if self.is_leader:
                store = TCPStore(host, 0, self.size, True, timeout, wait_for_workers=False)
                channel.send(store.port)
            else:
                store = TCPStore(host, channel.receive(), self.size, False, timeout)
            dist.init_process_group(
                backend, store=store, rank=self.rank, world_size=self.size, timeout=timeout
            )
        except RuntimeError as error:
            raise StartFailed(f"The ranks did not connect at {host}: {error}") from error


def rank_device() -> torch.device:
    """This rank's GPU, once it is connected, or the CPU where there is none."""
    import torch

    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
