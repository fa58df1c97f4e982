"""Power and state of a rank's GPUs: a line each second for each GPU, in the run folder.

docs/reference/metrics.md explains the keys of a line. Power, state and faults come from NVML, the library of
NVIDIA's driver, through ctypes; no process is started. A figure that the driver or the GPU does not support
is ``None``, never 0. Names and numbers are those of ``nvml.h``.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes import byref, c_char, c_uint, c_ulonglong, c_void_p
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.plan_record import PlanRecord
from trtllm_hpc.runtime.server_spec import RankOptions

LIBRARY = "libnvidia-ml.so.1"
_NO_FUNCTION, _NO_PERMISSION, _LOST = 13, 4, (15, 16)
"""Return codes of NVML (``nvmlReturn_t``)."""
_XIDS, _MOST_XIDS = c_ulonglong(8), 16
POWER_CAP = "power_cap"
_REASONS = {4: POWER_CAP, 8: "hw_slowdown", 32: "sw_thermal", 64: "hw_thermal", 128: "power_brake"}
"""Why a GPU's clocks are low, by bit. Other bits mean that the GPU is idle, or that its clocks are fixed."""

_PERIOD_S, _TICKS_A_SECOND, _TICKS_A_MINUTE = 0.1, 10, 600
_GAP_S = 1.0
"""Longest pause between two readings across which energy is added up."""
_MOST_BYTES = 16 << 20
"""A larger file (half a day of one GPU) is renamed to ``.old``, and replaces the previous one."""
_RANKS_PER_S = 64
"""Ranks of a server with more ranks write less often, to spare the file system."""


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> int:
    function = getattr(library, name, None)
    return _NO_FUNCTION if function is None else int(function(*arguments))


def _bus(library: ctypes.CDLL, device: c_void_p) -> str:
    info = (c_char * 68)()  # nvmlPciInfo_t: an old bus id, five numbers, the bus id
    _call(library, "nvmlDeviceGetPciInfo_v3", device, byref(info))
    return info.raw[36:].rstrip(b"\0").decode()


class Gpu:
    """One GPU and its energy; NVML does not measure the power of a part of a GPU (MIG)."""

    def __init__(self, library: ctypes.CDLL, device: c_void_p) -> None:
        self._call, uuid = partial(_call, library), (c_char * 96)()
        self._call("nvmlDeviceGetUUID", device, uuid, c_uint(96))
        self.device, self.uuid, self.bus = device, uuid.value.decode(), _bus(library, device)
        self.is_lost = False
        self._about = {"uuid": self.uuid, "index": self.read("Index"), "host": socket.gethostname()}
        self._at = 0.0
        self._watts: float | None = None
        self._seconds = self._joules = self._peak_w = 0.0
        self._total_s = self._total_j = self._total_peak_w = 0.0

    def read(
        self, what: str, *which: int, kind: Any = c_uint, place: int = 0, scale: float = 1
    ) -> float | None:
        """Return a figure of ``nvmlDeviceGet…``, or member ``place`` of a structure; ``None``: unknown."""
        values = (kind * 3)()  # no structure that is read here is longer
        code = self._call(f"nvmlDeviceGet{what}", self.device, *map(c_uint, which), byref(values))
        self.is_lost = self.is_lost or code in _LOST
        return round(values[place] * scale, 3) if code == 0 else None

    def state(self) -> dict[str, Any]:
        """Return utilization, memory, clocks, temperature, memory errors, and why the clocks are low."""
        long = partial(self.read, kind=c_ulonglong)
        reasons = long("CurrentClocksEventReasons")
        if reasons is None:  # the function's name before release 535 of the driver
            reasons = long("CurrentClocksThrottleReasons")
        return {
            "busy_share": self.read("UtilizationRates", scale=0.01),
            "memory_used_bytes": long("MemoryInfo", place=2),
            "sm_mhz": self.read("ClockInfo", 1),
            "memory_mhz": self.read("ClockInfo", 2),
            "celsius": self.read("Temperature", 0),
            "uncorrected_errors": long("TotalEccErrors", 1, 0),
            "throttled": None
            if reasons is None
            else [reason for bit, reason in _REASONS.items() if bit & int(reasons)],
        }

    def meter(self) -> None:
        """Add the energy since the last call (trapezoid of two power readings), unless the GPU is lost."""
        if self.is_lost:
            return
        at, before, self._at = self._at, self._watts, time.monotonic()
        self._watts = self.read("PowerUsage", scale=1e-3)  # newer GPUs return the mean of the last second
        if self.is_lost:  # the table of causes knows this line
            print(f"NVML: GPU {self.bus}: GPU is lost", flush=True)
        if self._watts is not None and before is not None and self._at - at < _GAP_S:
            self._seconds += self._at - at
            self._joules += (before + self._watts) / 2 * (self._at - at)
            self._peak_w = max(self._peak_w, self._watts)

    def end_second(self, xids: list[int], *, with_counter: bool) -> dict[str, Any]:
        """Return the line of the second that ends now, and begin the next second."""
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
            **({} if self.is_lost else self.state()),
            "counter_j": self.read(counter, kind=c_ulonglong, scale=1e-3) if with_counter else None,
        }


class Nvml:
    """The NVML library, initialised for this process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self._call, self._events = library, partial(_call, library), c_void_p()
        self._call("nvmlEventSetCreate", byref(self._events))

    @classmethod
    def opened(cls) -> Nvml | None:
        """Return the library; ``None`` if it is missing or does not work on this node or in its container."""
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError:
            return None
        return cls(library) if _call(library, "nvmlInit_v2") == 0 else None

    def gpus(self, names: Iterable[str]) -> list[Gpu]:
        """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` names by number or UUID, and record their faults.

        Numbers count the GPUs that this process may use. GPUs unknown to NVML are left out.
        """
        count, own, gpus = c_uint(), list[c_void_p](), list[Gpu]()
        self._call("nvmlDeviceGetCount_v2", byref(count))
        for number in range(count.value):
            device = c_void_p()
            if self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(number), byref(device)) != _NO_PERMISSION:
                own.append(device)
        for name in names:
            device = c_void_p()
            if name.isdigit():
                gpus += [Gpu(self._library, handle) for handle in own[int(name) :][:1]]
            elif self._call("nvmlDeviceGetHandleByUUID", name.encode(), byref(device)) == 0:
                gpus.append(Gpu(self._library, device))
        for gpu in gpus:
            self._call("nvmlDeviceRegisterEvents", gpu.device, _XIDS, self._events)
        return gpus

    def faults(self) -> Iterator[tuple[str, int]]:
        """Yield the GPU's bus ID and the number (Xid) of each fault since the last call, without waiting."""
        event = (c_ulonglong * 4)()  # nvmlEventData_t: the GPU, the kind, the Xid, the part of the GPU
        for _ in range(_MOST_XIDS if self._events else 0):
            if self._call("nvmlEventSetWait_v2", self._events, byref(event), c_uint(0)) != 0:
                return
            yield _bus(self._library, c_void_p(event[0])), int(event[2])


def read_seconds(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the readings in the complete lines of ``data``."""
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        with suppress(ValueError):  # the first line may be cut off
            yield json.loads(line)


def gpus_of_rank(options: RankOptions, environment: Mapping[str, str], planned: int) -> list[str]:
    """Return a rank's share of the GPUs on its node, as ``CUDA_VISIBLE_DEVICES`` names them.

    ``planned`` is the number of an instance's GPUs on a node; it is used if no variable names the GPUs.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES", environment.get("SLURM_STEP_GPUS"))
    names = [*map(str, range(planned))] if named is None else named.replace(" ", "").split(",")
    gpus, ranks = [name for name in names if name], options.ranks_per_node
    # Fewer GPUs than ranks means that Slurm has given each task its own GPUs.
    return gpus[options.rank % ranks :: ranks] if len(gpus) >= ranks else gpus


class GpuWatch:
    """Reads the power of GPUs ten times a second and their state once a second, in a thread."""

    def __init__(self, names: Sequence[str], file: Path, write_every_s: int = 1) -> None:
        self._names, self._file, self._write_every_s = names, file, write_every_s
        self._ended, self._look_at = threading.Event(), 0.0
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
        self.last: list[dict[str, Any]] = []
        """The last reading of each GPU."""

    @classmethod
    def of_rank(cls, paths: RunPaths, options: RankOptions) -> GpuWatch:
        """Return a watch for a rank's GPUs."""
        plan = PlanRecord.read(paths)
        names = gpus_of_rank(options, os.environ, 0 if plan is None else plan.gpus_per_node)
        every_s = min(10, 1 + options.world_size // _RANKS_PER_S)
        return cls(names, paths.gpu_readings(options.step, options.rank), every_s)

    def begin(self) -> None:
        """Start the thread; without GPUs or without NVML it writes nothing."""
        self._thread.start()

    def end(self) -> None:
        """Write the last readings, unless the driver does not answer."""
        self._ended.set()
        self._thread.join(1.0)

    def look(self) -> dict[str, Any]:
        """Return the new value of the rank record's field ``gpus`` once a minute, else nothing."""
        if not self.last or time.monotonic() < self._look_at:
            return {}
        self._look_at = time.monotonic() + _PERIOD_S * _TICKS_A_MINUTE
        return {"gpus": self.last}

    def _run(self) -> None:
        nvml = Nvml.opened() if self._names else None
        gpus = [] if nvml is None else nvml.gpus(self._names)
        if nvml is None or not gpus:
            return
        lines = b""
        for tick in count():
            ended = self._ended.wait(_PERIOD_S)
            for gpu in gpus:
                gpu.meter()
            if tick % _TICKS_A_SECOND == 0 or ended:
                with_counter, faults = ended or tick % _TICKS_A_MINUTE == 0, list(nvml.faults())
                for bus, xid in faults:  # in the kernel's own format, which the table of causes knows
                    print(f"NVRM: Xid (PCI:{bus}): {xid}, read from NVML", flush=True)
                self.last = [
                    gpu.end_second([xid for bus, xid in faults if bus == gpu.bus], with_counter=with_counter)
                    for gpu in gpus
                ]
                lines += b"".join(json.dumps(reading).encode() + b"\n" for reading in self.last)
            if tick % (_TICKS_A_SECOND * self._write_every_s) == 0 or ended:
                with suppress(OSError), self._file.open("ab") as file:
                    file.write(lines)
                    if file.tell() > _MOST_BYTES:
                        self._file.replace(self._file.with_suffix(".old"))
                lines = b""
            if ended:
                return
