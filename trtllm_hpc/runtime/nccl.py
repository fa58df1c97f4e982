"""The ranks of each server, measured by NCCL before anything is loaded.

There is a task for each rank, in the image. Each step is bounded: a rank in which NCCL hangs ends the job
with its name and its peer's. Where a node has fewer GPUs than ranks, Gloo is measured instead.
"""

from __future__ import annotations

import json
import os
import socket
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from itertools import chain
from threading import Timer
from typing import Any

from trtllm_hpc.errors import FAIL, WARN, Diagnostic, ExitCode
from trtllm_hpc.paths import RunPaths, write_json, write_text
from trtllm_hpc.runtime.checks import sentence_of
from trtllm_hpc.runtime.network import Link, judge, report_network, rounds, table
from trtllm_hpc.runtime.node import interface_towards, task_number

_IMPORT_S, _MEET_S, _STEP_S = 120.0, 60.0, 15.0
"""Importing PyTorch from a cold file system takes a minute."""
_BYTES, _PIECE, _TIMES, _PINGS = 64 << 20, 16 << 20, 5, 20
_ROUNDS = 16
"""With more ranks, each is paired with so many others only: the time is bounded."""
_BETWEEN = "between ranks: "


def check_ranks(paths: RunPaths, options: Namespace) -> int:
    """Measure with the other ranks; returns 0, or the exit code of a refused start."""
    rank, began = _Rank(paths, options), time.monotonic()
    try:
        with rank.bound("importing PyTorch", _IMPORT_S):
            import torch
    except ImportError as error:
        missing = Diagnostic("", f"NCCL is not measured: {error}", state=WARN)
        return report_network(paths, [missing] if rank.number == 0 else [], _BETWEEN)
    about, found = rank.measure(torch)
    if rank.number:
        return ExitCode.OK
    names = [f"rank {number} ({one['host']})" for number, one in enumerate(about)]
    links = [Link((a, b), names[a], names[b], *figures) for one in found for (a, b), figures in one["pairs"]]
    record: dict[str, Any] = {"transport": f"NCCL {about[0]['nccl']}" if about[0]["nccl"] else "Gloo"}
    record |= {"all_reduce": {one["world"]: one["gb_per_s"] for one in found if one["world"]}}
    findings = list[Diagnostic]()
    for apart in (False, True):  # GPUs of a node are joined otherwise than nodes
        pairs = [it for it in links if (about[it.pair[0]]["host"] != about[it.pair[1]]["host"]) == apart]
        if pairs and all(it.state != FAIL for it in findings):
            findings += judge(pairs, options.minimum or 0)
    record["said"] = list(map(sentence_of, findings))
    record |= {"seconds": round(time.monotonic() - began, 2), "links": [asdict(it) for it in links]}
    with suppress(OSError, ValueError):  # a full disk is no fault of the network
        _write(paths, record, links)
    return report_network(paths, findings, _BETWEEN)


class _Rank:
    """What one rank does with the others of its server."""

    def __init__(self, paths: RunPaths, options: Namespace) -> None:
        self.number = options.first + task_number()
        self._paths, self._options, self._host = paths, options, socket.gethostname()

    @contextmanager
    def bound(self, step: str, limit_s: float) -> Iterator[None]:
        """End this process, and so the job, if a step fails or does not end."""

        def give_up(why: str) -> int:
            message = f"rank {self.number} ({self._host}): {step} {why}"
            return report_network(self._paths, [Diagnostic("", message)], _BETWEEN)

        timer = Timer(limit_s, lambda: os._exit(give_up(f"has not ended after {limit_s:.0f} s")))
        timer.daemon = True
        timer.start()
        try:
            yield
        except (RuntimeError, OSError, ValueError) as error:
            raise SystemExit(give_up(f"fails: {' '.join(str(error).split())[:300]}")) from None
        finally:
            timer.cancel()

    def measure(self, torch: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return what each rank reports about itself, and what each has measured."""
        options, dist = self._options, torch.distributed
        with self.bound("looking at its GPUs", _MEET_S):
            has_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= options.ranks_per_node
            version = ".".join(map(str, torch.cuda.nccl.version())) if has_gpu else ""
        meet_s = _IMPORT_S + _MEET_S  # others may still import
        with self.bound("meeting the other ranks", meet_s):
            if interface := options.interface or interface_towards(options.address):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            if options.interface:
                os.environ.setdefault("NCCL_SOCKET_IFNAME", options.interface)
            place = {"init_method": f"tcp://{options.address}:{options.port}", "rank": self.number}
            limit = timedelta(seconds=meet_s - 5)
            dist.init_process_group("gloo", world_size=options.ranks, timeout=limit, **place)
            about = self._gathered(dist, {"host": self._host, "nccl": version})
        library, device = "gloo", "cpu"
        with self.bound("taking its GPU", _MEET_S):
            if all(one["nccl"] for one in about):
                local = int(os.environ.get("SLURM_LOCALID") or task_number())
                library, device = "nccl", f"cuda:{local % torch.cuda.device_count()}"
                torch.cuda.set_device(device)
            data = torch.ones(_BYTES // 4, device=device)
        worlds = [[int(rank) for rank in world.split(",")] for world in options.worlds.split()]
        with self.bound("forming the servers' groups", _MEET_S):
            groups = [dist.new_group(world, backend=library) for world in worlds]
        mine = {"world": "", "gb_per_s": 0.0, "pairs": []}
        for world, group in zip(worlds, groups, strict=True):
            if self.number in world:
                mine = self._with_world(torch, world, group, data)
        with self.bound("waiting for the other ranks' figures", _MEET_S):
            found = self._gathered(dist, mine)
            dist.destroy_process_group()
        return about, found

    def _with_world(self, torch: Any, world: list[int], group: Any, data: Any) -> dict[str, Any]:
        dist, half = torch.distributed, len(data) // 2
        wait: Callable[[], Any] = torch.cuda.synchronize if data.is_cuda else lambda: None

        def each_s(times: int, act: Callable[[], Any]) -> float:
            act()  # makes the connections
            wait()
            began = time.monotonic()
            for _ in range(times):
                act()
            wait()
            return (time.monotonic() - began) / times

        def swap(peer: int, count: int) -> None:
            sent = dist.P2POp(dist.isend, data[:count], peer, group)
            for work in dist.batch_isend_irecv(
                [sent, dist.P2POp(dist.irecv, data[half : half + count], peer, group)]
            ):
                work.wait()

        with self.bound("an all-reduce", _STEP_S):
            took_s = each_s(_TIMES, lambda: dist.all_reduce(data, group=group))
        rate, pairs = 2 * (len(world) - 1) / len(world) * _BYTES / 1e9 / took_s, []
        for pair in chain(*rounds(",".join(map(str, world)))[:_ROUNDS]):
            if self.number in pair:
                peer = sum(pair) - self.number
                with self.bound(f"an exchange with rank {peer}", _STEP_S):
                    trip_us = round(each_s(_PINGS, partial(swap, peer, 1)) * 1e6, 1)
                    speed = _PIECE / 1e9 / each_s(_TIMES, partial(swap, peer, _PIECE // 4))
                pairs.append((pair, (trip_us, *[round(speed, 3)] * 3)))
        first = {"world": ",".join(map(str, world)), "pairs": [it for it in pairs if it[0][0] == self.number]}
        return {**first, "gb_per_s": round(rate, 2)}

    def _gathered(self, dist: Any, own: dict[str, Any]) -> list[dict[str, Any]]:
        everything = [own] * self._options.ranks
        dist.all_gather_object(everything, own)
        return everything


def _write(paths: RunPaths, record: dict[str, Any], links: list[Link]) -> None:
    """Add what was measured to what is known of the nodes."""
    known = json.loads(paths.network.read_text()) if paths.network.exists() else {}
    text = paths.network_table.read_text() if "links" in known else ""
    rates = [f"all-reduce of ranks {it}: {rate:.2f} GB/s" for it, rate in record["all_reduce"].items()]
    shown = table(links, record | {"said": [*rates, *record["said"]]}, "ranks of each server")
    write_json(paths.network, known | {"ranks": record})
    text = f"{text}\n{shown}".lstrip()
    write_text(paths.network_table, text.replace("NCCL (ranks), ", "") if "NCCL" in shown[:99] else text)
