"""CPU time and memory of processes and of the machine, from proc(5)."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def machine_cpu_seconds() -> float:
    """CPU time of everything on this machine, including time stolen by other guests of the host."""
    first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, first.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS


def process_tree(pid: int) -> list[int]:
    """A process and its descendants, the process first."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(_stat_fields(stat)[1])
        except OSError:  # it has ended meanwhile
            continue
    tree = [pid]
    for member in tree:
        tree += [found for found, parent in parents.items() if parent == member]
    return tree


def _stat_fields(stat: Path) -> list[str]:
    """Fields of /proc/PID/stat from the state on; the name before it may contain blanks."""
    return stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process in seconds; 0 for one that has ended."""
    try:
        fields = _stat_fields(Path(f"/proc/{pid}/stat"))
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def peak_memory(pid: int) -> int:
    """Peak resident memory of a process in bytes: VmHWM of proc(5)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    lines = [line.split() for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0][1]) * 1024 if lines else 0
