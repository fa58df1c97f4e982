"""The ranks of each server, joined by NCCL before anything is loaded.

There is a task for each rank, in the image. Each step is bounded: a rank in which NCCL hangs ends the job
with its name and its peer's. Where a node has fewer GPUs than ranks, Gloo is tried instead.
"""

from __future__ import annotations

import os
import socket
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from threading import Timer
from typing import Any

from trtllm_hpc.errors import WARN, Diagnostic, ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.checks import report
from trtllm_hpc.runtime.network import refuse_network
from trtllm_hpc.runtime.node import interface_towards, task_number
from trtllm_hpc.runtime.records import try_event

EVENT = "nccl_ok"
"""Name of the event that all ranks were joined: the library, and GB/s of each server's all-reduce."""
BETWEEN = "between ranks: "
_IMPORT_S, _MEET_S, _STEP_S = 120.0, 60.0, 15.0
"""Importing PyTorch from a cold file system takes a minute."""
_BYTES, _TIMES = 64 << 20, 5


def check_ranks(paths: RunPaths, options: Namespace) -> int:
    """Join the other ranks; returns 0, or ends with the exit code of a refused start."""
    number = options.first + task_number()
    try:
        with bound(paths, number, "importing PyTorch", _IMPORT_S):
            import torch
    except ImportError as error:
        message = f"network: {BETWEEN}NCCL is not tried: {error}"
        return report(paths, [] if number else [Diagnostic("", message, state=WARN)])
    library, rates = join_ranks(paths, options, torch)
    if number == 0:
        print(f"preflight: all-reduce by {library}, GB/s: {rates}", flush=True)
        try_event(paths, "serve", EVENT, library=library, gb_per_s=rates)
    return ExitCode.OK


@contextmanager
def bound(paths: RunPaths, number: int, step: str, limit_s: float) -> Iterator[None]:
    """End this process, and so the job, if a rank's step fails or does not end."""

    def give_up(why: str) -> int:
        return refuse_network(paths, [f"{BETWEEN}rank {number} ({socket.gethostname()}): {step} {why}"])

    timer = Timer(limit_s, lambda: os._exit(give_up(f"has not ended after {limit_s:.0f} s")))
    timer.daemon = True
    timer.start()
    try:
        yield
    except (RuntimeError, OSError, ValueError) as error:
        raise SystemExit(give_up(f"fails: {' '.join(str(error).split())[:300]}")) from None
    finally:
        timer.cancel()


def join_ranks(paths: RunPaths, options: Namespace, torch: Any) -> tuple[str, dict[str, float]]:
    """Return the library that joins the ranks, and GB/s of the all-reduce of each server's ranks."""
    number, dist = options.first + task_number(), torch.distributed
    step = partial(bound, paths, number)
    with step("looking at its GPUs", _MEET_S):
        has_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= options.ranks_per_node
        library = f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}" if has_gpu else "Gloo"
    meet_s = _IMPORT_S + _MEET_S  # others may still import
    with step("meeting the other ranks", meet_s):
        if interface := options.interface or interface_towards(options.address):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        if options.interface:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", options.interface)
        place = {"init_method": f"tcp://{options.address}:{options.port}", "rank": number}
        dist.init_process_group(
            "gloo", world_size=options.ranks, timeout=timedelta(seconds=meet_s - 5), **place
        )
        libraries = _gathered(dist, library, options.ranks)
    device = "cpu"
    with step("taking its GPU", _MEET_S):
        if "Gloo" in libraries:
            library = "Gloo"
        else:
            local = int(os.environ.get("SLURM_LOCALID") or task_number())
            device = f"cuda:{local % torch.cuda.device_count()}"
            torch.cuda.set_device(device)
        data = torch.ones(_BYTES // 4, device=device)
    worlds = [[int(rank) for rank in world.split(",")] for world in options.worlds.split()]
    with step("forming the servers' groups", _MEET_S):
        groups = [dist.new_group(world, backend="gloo" if device == "cpu" else "nccl") for world in worlds]
    rates = dict[str, float]()
    for world, group in zip(worlds, groups, strict=True):
        if number in world:
            rates[",".join(map(str, world))] = _exchange(torch, number, world, group, data, step)
    with step("waiting for the other ranks' figures", _MEET_S):
        found = _gathered(dist, rates, options.ranks)
        dist.destroy_process_group()
    return library, {world: rate for one in found for world, rate in one.items()}


def _exchange(torch: Any, number: int, world: list[int], group: Any, data: Any, step: Any) -> float:
    """Exchange data with both neighbours, each of whom a hang names, then with all; returns GB/s of that."""
    dist = torch.distributed
    for first in (0, 1):  # pairs that have no rank in common, and so do not wait for each other
        for pair in zip(world[first::2], world[first + 1 :: 2], strict=False):
            if number in pair:
                peer = sum(pair) - number
                with step(f"an exchange with rank {peer}", _STEP_S):
                    sent = dist.P2POp(dist.isend, data[:1], peer, group)
                    received = dist.P2POp(dist.irecv, data[1:2], peer, group)
                    for work in dist.batch_isend_irecv([sent, received]):
                        work.wait()
                    _wait(torch, data)
    with step("an all-reduce", _STEP_S):
        dist.all_reduce(data, group=group)  # makes the connections
        _wait(torch, data)
        began = time.monotonic()
        for _ in range(_TIMES):
            dist.all_reduce(data, group=group)
        _wait(torch, data)
    each_s = (time.monotonic() - began) / _TIMES
    return round(2 * (len(world) - 1) / len(world) * _BYTES / 1e9 / each_s, 2)


def _wait(torch: Any, data: Any) -> None:
    if data.is_cuda:
        torch.cuda.synchronize()


def _gathered(dist: Any, own: Any, ranks: int) -> list[Any]:
    everything = [own] * ranks
    dist.all_gather_object(everything, own)
    return everything
