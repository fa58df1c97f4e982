"""The energy that the server's GPUs use during a pass: by NVML, or else by a counter of the server."""

from __future__ import annotations

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.results import Energy, Window
from trtllm_hpc.bench.server_metrics.sampling import energy_counter
from trtllm_hpc.logs.snapshot import plan_of
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.gpus import read_seconds
from trtllm_hpc.runtime.nvml import POWER_CAP
from trtllm_hpc.runtime.records import Endpoint

_IDLE_S, _TAIL_BYTES = 10.0, 1 << 18
"""Seconds before a pass in which its GPUs may be idle."""
_PATIENCE_S, _DEAD_S, _PAUSE_S = 12.0, 20.0, 0.2
"""Ranks of large servers write up to 10 s late."""
_LEAST_SHARE = 0.9
"""Share of a window that must have been measured on every GPU."""


@dataclass
class _Use:
    """One GPU in a window."""

    until: float
    """Earlier readings are counted already, for two ranks may read one GPU, or lie outside the window."""
    name: str = ""
    seconds: float = 0.0
    joules: float = 0.0
    peak_w: float = 0.0
    idle_w: float = math.inf
    reasons_s: Counter[str] = field(default_factory=Counter)

    def add(self, it: dict[str, Any], end: float) -> None:
        """Add the part of a reading that lies in the window."""
        gpu = it["uuid"] if it["index"] is None else f"GPU{it['index']}"
        self.name = f"{gpu} of {it['host']}"
        inside_s = min(it["time"], end) - max(it["time"] - it["seconds"], self.until)
        if inside_s > 0:
            self.until, self.seconds = it["time"], self.seconds + inside_s
            self.joules += it["joules"] * inside_s / it["seconds"]
            self.peak_w = max(self.peak_w, it["peak_w"])
            self.reasons_s.update(dict.fromkeys(it.get("throttled") or (), inside_s))


class PowerReadings:
    """Follows the readings that the ranks of a run write about their GPUs."""

    def __init__(self, paths: RunPaths, endpoint: Endpoint, clock: Clock) -> None:
        plan = plan_of(paths)
        self._ranks, self._folder = 0 if plan is None else sum(plan.world_sizes), paths.ranks
        self._endpoint, self._clock = endpoint, clock
        self._read: dict[int, int] = {}
        """How far each file has been read, by its inode: a file that is full gets another name."""
        self._newest: dict[str, float] = {}
        self._idle_w: float | None = None
        self._ended_at = 0.0
        self._counter: tuple[float, float] | None = None
        has_gpus = plan is None or plan.gpus_per_node
        self._unknown = (
            "not known: no rank could read NVML, and the server has no counter" if has_gpus else ""
        )
        self._sources: dict[str, None] = {}

    @property
    def source(self) -> str:
        """How the energy of the passes is known, in words; empty for a server without GPUs."""
        return "; ".join(self._sources) or self._unknown

    def follow(self, endpoint: Endpoint) -> None:
        """Ask the server at another address from now on."""
        self._endpoint = endpoint

    def begin(self) -> None:
        """Note how far the readings are at the beginning of a pass, or else the server's own counter."""
        files = self._files()
        for file in files:
            with suppress(OSError):  # it may have been full just now
                stat = file.stat()
                self._read.setdefault(stat.st_ino, max(0, stat.st_size - _TAIL_BYTES))
        found = None if files else energy_counter(self._endpoint)
        self._counter = None if found is None else (self._clock.now(), found[1])

    def energy(self, started_s: float, window: Window, ended_s: float) -> Energy | None:
        """Return the energy in the window of a pass, once the ranks have written it."""
        if self._counter is not None:
            return self._by_counter(*self._counter, window.length_s)
        zero = time.time() - self._clock.now()
        started, begin, end = (it + zero for it in (started_s, window.start_s, window.end_s))
        idle_from, self._ended_at = max(self._ended_at, started - _IDLE_S), ended_s + zero
        uses: dict[str, _Use] = defaultdict(lambda: _Use(begin))
        for it in self._lines_until(end):
            use = uses[it["uuid"]]
            use.add(it, end)
            if it["seconds"] and idle_from <= it["time"] - it["seconds"] and it["time"] <= started:
                use.idle_w = min(use.idle_w, it["joules"] / it["seconds"])
        if uses and math.isfinite(idle_w := sum(it.idle_w for it in uses.values())):
            self._idle_w = idle_w
        return self._summed(list(uses.values()), end, window.length_s) if uses and end > begin else None

    def _summed(self, uses: list[_Use], end: float, length_s: float) -> Energy | None:
        missing = [it.name for it in uses if it.seconds < _LEAST_SHARE * length_s]
        silent = self._ranks - sum(it >= end for it in self._newest.values())
        if missing or silent > 0:
            what = missing[0] if missing else f"the GPUs of {silent} rank{'s' * (silent > 1)}"
            self._sources[f"not known: the power of {what} was not measured all the time"] = None
            return None
        self._sources[f"by NVML, of {len(uses)} GPU{'s' * (len(uses) > 1)}"] = None
        slowed = [
            f"{it.name} ({reason}, {seconds:.1f} of {it.seconds:.0f} s)"
            for it in uses
            for reason, seconds in it.reasons_s.items()
            if reason != POWER_CAP
        ]
        return Energy(
            joules=sum(it.joules / it.seconds for it in uses) * length_s,
            peak_w=sum(it.peak_w for it in uses),
            idle_w=self._idle_w,
            capped_share=sum(it.reasons_s[POWER_CAP] for it in uses) / sum(it.seconds for it in uses),
            slowed=", ".join(slowed),
        )

    def _by_counter(self, since_s: float, joules: float, length_s: float) -> Energy | None:
        """Return the energy of a whole pass, scaled to its window."""
        found = energy_counter(self._endpoint)
        if found is None or found[1] <= joules:
            return None
        self._sources[f"by {found[0]}, over whole passes"] = None
        return Energy((found[1] - joules) / (self._clock.now() - since_s) * length_s)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("serve*.gpus.*"), reverse=True)  # .old before .jsonl

    def _lines_until(self, end: float) -> Iterator[dict[str, Any]]:
        """Yield new readings until every rank that lives has written its readings up to ``end``."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            for file in self._files():
                for it in self._new(file):
                    self._newest[file.stem] = it["time"]
                    yield it
            is_late = any(end - _DEAD_S < it < end for it in self._newest.values())
            if not is_late or time.monotonic() > deadline:
                return
            time.sleep(_PAUSE_S)

    def _new(self, file: Path) -> Iterator[dict[str, Any]]:
        """Return the readings since the last call, or since the pass began."""
        data = b""
        with suppress(OSError), file.open("rb") as stream:
            inode, size = os.fstat(stream.fileno()).st_ino, stream.seek(0, 2)
            at = self._read.get(inode, 0)
            start = stream.seek(at if at <= size else 0)
            data = stream.read()
            self._read[inode] = start + data.rfind(b"\n") + 1
        return read_seconds(data)
