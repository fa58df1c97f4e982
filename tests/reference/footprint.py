"""What servers and their stubs hold of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .servers import World

MIB = 1 << 20
MOST_GROWTH = 8.0
"""MiB by which a process may grow over some hundred requests.

Allocators settle at their own pace: 2 MiB over 800 requests were seen, and no
more over 6,000 others. A leak of the tensors of each answer would make tens.
"""


@dataclass(frozen=True)
class Holding:
    """What one process holds."""

    resident: float
    """MiB."""
    threads: int
    files: int


@dataclass(frozen=True)
class Footprint:
    """What all processes of all ranks hold."""

    processes: dict[str, Holding]
    """By rank and model; Triton itself is ``server``."""
    regions: dict[str, int]
    """Bytes of each region of shared memory."""


def grown(before: Footprint, after: Footprint) -> list[str]:
    """What became more, in words; memory by more than ``MOST_GROWTH``."""
    found = [f"{name} is gone or new" for name in before.processes.keys() ^ after.processes.keys()]
    for name in before.processes.keys() & after.processes.keys():
        old, new = before.processes[name], after.processes[name]
        if new.resident > old.resident + MOST_GROWTH or new.threads > old.threads or new.files > old.files:
            found.append(f"{name}: {old} became {new}")
    if before.regions != after.regions:
        found.append(f"shared memory: {before.regions} became {after.regions}")
    return found


def footprint(world: World) -> Footprint:
    processes = {}
    for rank, server in enumerate(world.ranks):
        processes[f"{rank} server"] = _holding(server.pid)
        for pid in world.children(rank):
            # Its first argument is <model>/<version>/model.py in the repository.
            model = Path(Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")[1]).parts[-3]
            processes[f"{rank} {model} {pid}"] = _holding(pid)
    regions = {name: (Path("/dev/shm") / name).stat().st_size for name in world.shared_memory()}
    return Footprint(processes, regions)


def _holding(pid: int) -> Holding:
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text(encoding="utf-8").splitlines())
    resident = int(status["VmRSS"].split()[0]) * 1024 / MIB
    return Holding(resident, int(status["Threads"]), len(list((folder / "fd").iterdir())))
