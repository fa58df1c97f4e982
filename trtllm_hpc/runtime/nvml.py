"""NVML, the library of NVIDIA's driver: power, state and faults of GPUs.

It is called through ctypes; no process is started. An old driver lacks functions, and a GPU may not support
others: their figures are ``None``, never 0. Names and numbers are those of ``nvml.h``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from ctypes import byref, c_char, c_uint, c_ulonglong, c_void_p
from functools import partial
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_NO_FUNCTION, _NO_PERMISSION, _LOST = 13, 4, (15, 16)
_XIDS, _MOST_XIDS = c_ulonglong(8), 16
POWER_CAP = "power_cap"
_REASONS = {4: POWER_CAP, 8: "hw_slowdown", 32: "sw_thermal", 64: "hw_thermal", 128: "power_brake"}
"""Why a GPU's clocks are low, by bit. Other bits say that it is idle, or that somebody has set its clocks."""


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> int:
    function = getattr(library, name, None)
    return _NO_FUNCTION if function is None else int(function(*arguments))


def _bus(library: ctypes.CDLL, device: c_void_p) -> str:
    info = (c_char * 68)()  # nvmlPciInfo_t: an old bus id, five numbers, the bus id
    _call(library, "nvmlDeviceGetPciInfo_v3", device, byref(info))
    return info.raw[36:].rstrip(b"\0").decode()


class Gpu:
    """One GPU, or a part of it (MIG), whose power NVML does not measure."""

    def __init__(self, library: ctypes.CDLL, device: c_void_p) -> None:
        self._call, uuid = partial(_call, library), (c_char * 96)()
        self._call("nvmlDeviceGetUUID", device, uuid, c_uint(96))
        self.device, self.uuid, self.bus = device, uuid.value.decode(), _bus(library, device)
        self.is_lost = False

    def read(
        self, what: str, *which: int, kind: Any = c_uint, place: int = 0, scale: float = 1
    ) -> float | None:
        """Return a figure of ``nvmlDeviceGet…``, or that at a ``place`` of a structure; ``None``: unknown."""
        found = (kind * 3)()  # no structure is longer
        code = self._call(f"nvmlDeviceGet{what}", self.device, *map(c_uint, which), byref(found))
        self.is_lost = self.is_lost or code in _LOST
        return round(found[place] * scale, 3) if code == 0 else None

    def power_w(self) -> float | None:
        """Return the power; newer GPUs report the mean of the last second."""
        return self.read("PowerUsage", scale=1e-3)

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
