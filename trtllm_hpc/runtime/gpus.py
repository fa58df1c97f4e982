"""Power and state of a rank's GPUs: a line each second for each GPU, in the run folder.

docs/how-to/energy.md explains the keys of a line.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes import c_ulonglong
from itertools import count
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.nvml import Gpu, Nvml
from trtllm_hpc.runtime.plan_record import PlanRecord
from trtllm_hpc.runtime.server_spec import RankOptions

_PERIOD_S, _TICKS_A_SECOND, _TICKS_A_MINUTE = 0.1, 10, 600
_GAP_S = 1.0
"""The energy in a longer pause between two readings is unknown."""
_MOST_BYTES = 16 << 20
"""A file is full after half a day of one GPU, and becomes ``.old`` in place of the one before."""
_RANKS_PER_S = 64
"""Ranks of a larger server write less often, for the sake of the file system."""


def read_seconds(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the readings in whole lines."""
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        with suppress(ValueError):  # the first may be cut off
            yield json.loads(line)


def gpus_of_rank(options: RankOptions, environment: Mapping[str, str], planned: int) -> list[str]:
    """Return a rank's share of the GPUs on its node, as ``CUDA_VISIBLE_DEVICES`` names them.

    ``planned`` is the number of an instance's GPUs on a node, for when no variable names them.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES", environment.get("SLURM_STEP_GPUS"))
    names = [*map(str, range(planned))] if named is None else named.replace(" ", "").split(",")
    gpus, ranks = [name for name in names if name], options.ranks_per_node
    # With fewer, Slurm has given each task its own.
    return gpus[options.rank % ranks :: ranks] if len(gpus) >= ranks else gpus


class _Meter:
    """Adds up what a GPU draws, by trapezoids."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._about = {"uuid": gpu.uuid, "index": gpu.read("Index"), "host": socket.gethostname()}
        self._at, self._watts = 0.0, gpu.power_w()
        self._seconds = self._joules = self._peak_w = 0.0
        self._total_s = self._total_j = self._total_peak_w = 0.0

    def read(self) -> None:
        """Read the power, unless the GPU is lost."""
        if self.gpu.is_lost:
            return
        at, before, self._at, self._watts = self._at, self._watts, time.monotonic(), self.gpu.power_w()
        if self.gpu.is_lost:  # in the words of the table of causes
            print(f"NVML: GPU {self.gpu.bus}: GPU is lost", flush=True)
        if self._watts is not None and before is not None and self._at - at < _GAP_S:
            self._seconds += self._at - at
            self._joules += (before + self._watts) / 2 * (self._at - at)
            self._peak_w = max(self._peak_w, self._watts)

    def end_second(self, xids: list[int], *, with_counter: bool) -> dict[str, Any]:
        """Return the line of the second that ends now, and begin the next one."""
        seconds, joules, peak_w = self._seconds, self._joules, self._peak_w
        self._seconds = self._joules = self._peak_w = 0.0
        self._total_s, self._total_j = self._total_s + seconds, self._total_j + joules
        self._total_peak_w = max(self._total_peak_w, peak_w)
        counter = "TotalEnergyConsumption"
        return {
            **self._about,
            **{"time": round(time.time(), 3), "seconds": round(seconds, 3), "joules": round(joules, 3)},
            **{"total_s": round(self._total_s, 3), "total_j": round(self._total_j, 3)},
            **{"peak_w": peak_w, "total_peak_w": self._total_peak_w, "xids": xids},
            **({} if self.gpu.is_lost else self.gpu.state()),
            "counter_j": self.gpu.read(counter, kind=c_ulonglong, scale=1e-3) if with_counter else None,
        }


class GpuWatch:
    """Reads the power of GPUs ten times a second and their state once, in a thread."""

    def __init__(self, names: Sequence[str], file: Path, write_every_s: int = 1) -> None:
        self._names, self._file, self._write_every_s = names, file, write_every_s
        self._ended, self._look_at = threading.Event(), 0.0
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
        self.last: list[dict[str, Any]] = []
        """The last line of each GPU."""

    @classmethod
    def of_rank(cls, paths: RunPaths, options: RankOptions) -> GpuWatch:
        """Return the watch over a rank's GPUs."""
        plan = PlanRecord.read(paths)
        file = paths.gpu_readings(options.step, options.rank)
        every_s = min(10, 1 + options.world_size // _RANKS_PER_S)
        return cls(
            gpus_of_rank(options, os.environ, 0 if plan is None else plan.gpus_per_node), file, every_s
        )

    def begin(self) -> None:
        """Begin; without GPUs or without NVML nothing is written."""
        self._thread.start()

    def end(self) -> None:
        """Write the last readings, unless the driver does not answer."""
        self._ended.set()
        self._thread.join(1.0)

    def look(self) -> dict[str, Any]:
        """Return the field of the rank's record that changes, once a minute."""
        if not self.last or time.monotonic() < self._look_at:
            return {}
        self._look_at = time.monotonic() + _PERIOD_S * _TICKS_A_MINUTE
        return {"gpus": self.last}

    def _run(self) -> None:
        nvml = Nvml.opened() if self._names else None
        meters = [_Meter(gpu) for gpu in nvml.gpus(self._names)] if nvml is not None else []
        if nvml is None or not meters:
            return
        lines = b""
        for tick in count():
            ended = self._ended.wait(_PERIOD_S)
            for meter in meters:
                meter.read()
            if tick % _TICKS_A_SECOND == 0 or ended:
                lines += self._lines(nvml, meters, with_counter=ended or tick % _TICKS_A_MINUTE == 0)
            if tick % (_TICKS_A_SECOND * self._write_every_s) == 0 or ended:
                self._write(lines)
                lines = b""
            if ended:
                return

    def _lines(self, nvml: Nvml, meters: list[_Meter], *, with_counter: bool) -> bytes:
        faults = list(nvml.faults())
        for bus, xid in faults:  # as the kernel writes it, for the table of causes
            print(f"NVRM: Xid (PCI:{bus}): {xid}, read from NVML", flush=True)
        self.last = [
            it.end_second([xid for bus, xid in faults if bus == it.gpu.bus], with_counter=with_counter)
            for it in meters
        ]
        return b"".join(json.dumps(it).encode() + b"\n" for it in self.last)

    def _write(self, lines: bytes) -> None:
        with suppress(OSError), self._file.open("ab") as file:
            file.write(lines)
            if file.tell() > _MOST_BYTES:
                self._file.replace(self._file.with_suffix(".old"))
