"""Checks of one node."""

from __future__ import annotations

from trtllm_hpc.errors import Diagnostic, fail, ok, warn

MIN_SHM_GIB_PER_RANK = 0.25
"""The Python backend alone takes tens of MiB a model; Docker's default of 64 MiB is too little."""

MIN_MEMLOCK_KIB = 64 * 1024
"""NCCL and UCX register memory with the network card; the usual default, 64 KiB or 8 MiB, is too little."""


def shared_memory(host: str, free_gib: float, ranks: int) -> Diagnostic:
    """Triton's Python models talk through /dev/shm."""
    needed = MIN_SHM_GIB_PER_RANK * ranks
    if free_gib < needed:
        message = f"/dev/shm on {host} has {free_gib:.2f} GiB free, but {ranks} rank(s) need {needed:.2f} GiB"
        return fail(message, "remove what dead jobs left in /dev/shm, or ask the site for a larger one")
    return ok(f"/dev/shm on {host} has {free_gib:.1f} GiB free")


def locked_memory(host: str, limit_kib: int | None) -> Diagnostic:
    """The soft limit on locked memory; ``None`` is unlimited."""
    if limit_kib is not None and limit_kib < MIN_MEMLOCK_KIB:
        return warn(
            f"only {limit_kib} KiB of memory may be locked on {host}: NCCL and UCX register more with the "
            "network card",
            "ask your site for LimitMEMLOCK=infinity in slurmd's unit, and in slurm.conf for "
            "PropagateResourceLimitsExcept=MEMLOCK",
        )
    amount = "any amount" if limit_kib is None else f"{limit_kib // 1024} MiB"
    return ok(f"{amount} of memory may be locked on {host}")
