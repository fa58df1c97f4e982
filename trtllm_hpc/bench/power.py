"""Energy of the server's GPUs during a pass, from the NVML readings of the ranks."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.results import Energy, Window
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.gpus import POWER_CAP, read_seconds
from trtllm_hpc.runtime.plan_record import PlanRecord

_TAIL_BYTES = 1 << 18
_PATIENCE_S, _DEAD_S, _PAUSE_S = 12.0, 20.0, 0.2
"""Wait for late readings (ranks of large servers write up to 10 s late), age of a dead rank's last reading,
and pause between two looks."""
_LEAST_SHARE = 0.9
"""Share of a window that readings of every GPU must cover."""


class PowerReadings:
    """Follows the files of GPU readings that the ranks of a run write."""

    def __init__(self, paths: RunPaths, clock: Clock) -> None:
        plan = PlanRecord.read(paths)
        self._ranks, self._folder = 0 if plan is None else sum(plan.world_sizes), paths.ranks
        self._clock = clock
        self._read: dict[int, int] = {}
        """Read position of each file, by inode because full files are renamed."""
        self._newest: dict[str, float] = {}
        has_gpus = plan is None or plan.gpus_per_node
        self._unknown = "not known: no rank could read NVML" if has_gpus else ""
        self._sources: dict[str, None] = {}

    @property
    def source(self) -> str:
        """Source of the energy figures, in words; empty for a server without GPUs."""
        return "; ".join(self._sources) or self._unknown

    def begin(self) -> None:
        """Skip the readings from before a pass."""
        for file in self._files():
            with suppress(OSError):  # a rank may rename the file just now
                stat = file.stat()
                self._read.setdefault(stat.st_ino, max(0, stat.st_size - _TAIL_BYTES))

    def energy(self, window: Window) -> Energy | None:
        """Wait for the ranks' readings, and return the energy in a pass's window; ``None`` if unknown."""
        zero = time.time() - self._clock.now()
        begin, end = window.start_s + zero, window.end_s + zero
        gpus: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for reading in self._lines_until(end):
            gpus[reading["uuid"]].append(reading)
        if not gpus or end <= begin:
            return None
        watts, slowed, missing = 0.0, list[str](), list[str]()
        for readings in gpus.values():
            gpu, index = readings[-1]["uuid"], readings[-1]["index"]
            name = f"{gpu if index is None else f'GPU{index}'} of {readings[-1]['host']}"
            until, seconds, joules, reasons_s = begin, 0.0, 0.0, Counter[str]()
            for reading in readings:
                # Two ranks may read one GPU, and a reading may lie outside the window.
                inside_s = min(reading["time"], end) - max(reading["time"] - reading["seconds"], until)
                if inside_s > 0:
                    until, seconds = reading["time"], seconds + inside_s
                    joules += reading["joules"] * inside_s / reading["seconds"]
                    reasons_s.update(dict.fromkeys(reading.get("throttled") or (), inside_s))
            if seconds < _LEAST_SHARE * window.length_s:
                missing.append(name)
                continue
            watts += joules / seconds
            del reasons_s[POWER_CAP]  # normal under load
            slowed += [f"{name} ({why}, {for_s:.1f} of {seconds:.0f} s)" for why, for_s in reasons_s.items()]
        silent = self._ranks - sum(time_s >= end for time_s in self._newest.values())
        if missing or silent > 0:
            gpus_without = missing[0] if missing else f"the GPUs of {silent} rank{'s' * (silent > 1)}"
            self._sources[f"not known: the power of {gpus_without} was not measured all the time"] = None
            return None
        self._sources[f"by NVML, of {len(gpus)} GPU{'s' * (len(gpus) > 1)}"] = None
        return Energy(watts * window.length_s, ", ".join(slowed))

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("serve*.gpus.*"), reverse=True)  # .old before .jsonl

    def _lines_until(self, end: float) -> Iterator[dict[str, Any]]:
        """Yield new readings until every live rank has written its readings up to ``end``."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            for file in self._files():
                for reading in self._new(file):
                    self._newest[file.stem] = reading["time"]
                    yield reading
            is_late = any(end - _DEAD_S < time_s < end for time_s in self._newest.values())
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
