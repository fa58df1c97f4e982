"""Power and state of a rank's GPUs: a line each second for each GPU, in the run folder.

docs/reference/metrics.md explains the keys of a line. Power, state and faults come from NVML, the library of
NVIDIA's driver, through ctypes; no process is started. An old driver lacks functions, and a GPU may not
support others: their figures are ``None``, never 0. Names and numbers are those of ``nvml.h``.
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
_XIDS, _MOST_XIDS = c_ulonglong(8), 16
POWER_CAP = "power_cap"
_REASONS = {4: POWER_CAP, 8: "hw_slowdown", 32: "sw_thermal", 64: "hw_thermal", 128: "power_brake"}
"""Why a GPU's clocks are low, by bit. Other bits say that it is idle, or that somebody has set its clocks."""

_PERIOD_S, _TICKS_A_SECOND, _TICKS_A_MINUTE = 0.1, 10, 600
_GAP_S = 1.0
"""The energy in a longer pause between two readings is unknown."""
_MOST_BYTES = 16 << 20
"""A file is full after half a day of one GPU, and becomes ``.old`` in place of the one before."""
_RANKS_PER_S = 64
"""Ranks of a larger server write less often, for the sake of the file system."""


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> int:
    function = getattr(library, name, None)
    return _NO_FUNCTION if function is None else int(function(*arguments))


def _bus(library: ctypes.CDLL, device: c_void_p) -> str:
    info = (c_char * 68)()  # nvmlPciInfo_t: an old bus id, five numbers, the bus id
    _call(library, "nvmlDeviceGetPciInfo_v3", device, byref(info))
    return info.raw[36:].rstrip(b"\0").decode()


class Gpu:
    """One GPU, and what it draws; NVML does not measure the power of a part of one (MIG)."""

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
        """Return a figure of ``nvmlDeviceGet…``, or that at a ``place`` of a structure; ``None``: unknown."""
        found = (kind * 3)()  # no structure is longer
        code = self._call(f"nvmlDeviceGet{what}", self.device, *map(c_uint, which), byref(found))
        self.is_lost = self.is_lost or code in _LOST
        return round(found[place] * scale, 3) if code == 0 else None

    def state(self) -> dict[str, Any]:
        """Return use, memory, clocks, temperature, memory errors, and why the clocks are low."""
        long = partial(self.read, kind=c_ulonglong)
        reasons = long("CurrentClocksEventReasons")
        if reasons is None:  # its name before release 535 of the driver
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
            else [it for bit, it in _REASONS.items() if bit & int(reasons)],
        }

    def meter(self) -> None:
        """Add up what it has drawn since the last call, by a trapezoid, unless it is lost."""
        if self.is_lost:
            return
        at, before, self._at = self._at, self._watts, time.monotonic()
        self._watts = self.read("PowerUsage", scale=1e-3)  # on newer GPUs the mean of the last second
        if self.is_lost:  # in the words of the table of causes
            print(f"NVML: GPU {self.bus}: GPU is lost", flush=True)
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
            **({} if self.is_lost else self.state()),
            "counter_j": self.read(counter, kind=c_ulonglong, scale=1e-3) if with_counter else None,
        }


class Nvml:
    """The library, initialised for this process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self._call, self._events = library, partial(_call, library), c_void_p()
        self._call("nvmlEventSetCreate", byref(self._events))

    @classmethod
    def opened(cls) -> Nvml | None:
        """Return the library; ``None`` if this node, or its container, has none that works."""
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError:
            return None
        return cls(library) if _call(library, "nvmlInit_v2") == 0 else None

    def gpus(self, names: Iterable[str]) -> list[Gpu]:
        """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` names by number or UUID, and keep their faults.

        Numbers count the GPUs that this process may use. A GPU that NVML does not know is left out.
        """
        count, own, found = c_uint(), list[c_void_p](), list[Gpu]()
        self._call("nvmlDeviceGetCount_v2", byref(count))
        for number in range(count.value):
            device = c_void_p()
            if self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(number), byref(device)) != _NO_PERMISSION:
                own.append(device)
        for name in names:
            device = c_void_p()
            if name.isdigit():
                found += [Gpu(self._library, it) for it in own[int(name) :][:1]]
            elif self._call("nvmlDeviceGetHandleByUUID", name.encode(), byref(device)) == 0:
                found.append(Gpu(self._library, device))
        for gpu in found:
            self._call("nvmlDeviceRegisterEvents", gpu.device, _XIDS, self._events)
        return found

    def faults(self) -> Iterator[tuple[str, int]]:
        """Yield the bus id of the GPU and the number (Xid) of each fault since the last call; never wait."""
        event = (c_ulonglong * 4)()  # nvmlEventData_t: the GPU, the kind, the Xid, the part of the GPU
        for _ in range(_MOST_XIDS if self._events else 0):
            if self._call("nvmlEventSetWait_v2", self._events, byref(event), c_uint(0)) != 0:
                return
            yield _bus(self._library, c_void_p(event[0])), int(event[2])


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
        names = gpus_of_rank(options, os.environ, 0 if plan is None else plan.gpus_per_node)
        every_s = min(10, 1 + options.world_size // _RANKS_PER_S)
        return cls(names, paths.gpu_readings(options.step, options.rank), every_s)

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
                for bus, xid in faults:  # as the kernel writes it, for the table of causes
                    print(f"NVRM: Xid (PCI:{bus}): {xid}, read from NVML", flush=True)
                self.last = [
                    gpu.end_second([xid for bus, xid in faults if bus == gpu.bus], with_counter=with_counter)
                    for gpu in gpus
                ]
                lines += b"".join(json.dumps(it).encode() + b"\n" for it in self.last)
            if tick % (_TICKS_A_SECOND * self._write_every_s) == 0 or ended:
                with suppress(OSError), self._file.open("ab") as file:
                    file.write(lines)
                    if file.tell() > _MOST_BYTES:
                        self._file.replace(self._file.with_suffix(".old"))
                lines = b""
            if ended:
                return
