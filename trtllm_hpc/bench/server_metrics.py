"""The server's own metrics during a measurement, on the client's clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trtllm_hpc.runtime.records import Endpoint

INTERVAL_S = 0.5


class Clock(Protocol):
    """The measurement's clock."""

    def now(self) -> float:
        """Seconds since its zero, monotonic."""


@dataclass(frozen=True)
class ServerSample:
    """One look at the server's metrics page."""

    time_s: float
    """Middle of the GET, on the measurement's clock."""
    within_s: float
    """Half of the GET's time: the page is of ``time_s`` give or take this."""
    values: dict[str, float]
    """By series, see ``describe``. What the server does not tell is absent, never zero.
    Of the engine: kv_blocks_used, kv_blocks_max, kv_used_share, requests_active, requests_waiting, requests_scheduled,
    requests_max, output_tokens_per_s, input_tokens_per_s, iterations_per_s, memory_gpu_bytes, memory_cpu_bytes ...
    (with ``[MODEL]`` behind where several models export them).
    Of each model of Triton, e.g. ``queue_ms[ensemble]``: finished_per_s, failed_per_s, pending, queue_ms,
    compute_ms, duration_ms (means over the requests that finished since the sample before).
    Of the host: cpu_share, host_memory_used_bytes, gpu_share, gpu_memory_used_bytes, gpu_power_w."""


@dataclass(frozen=True)
class Series:
    """What a series is, for tables and plots."""

    key: str
    label: str
    unit: str
    """``blocks``, ``requests``, ``ms``, ``1/s``, ``share`` (0 to 1), ``bytes``, ``W``, ``tokens/s``."""
    model: str | None = None


def describe(key: str) -> Series:
    """What the series of that key is."""
    raise NotImplementedError


class Samples:
    """What was sampled; read it after the context is closed."""

    @property
    def samples(self) -> list[ServerSample]:
        """In the order of time; parsed now."""
        raise NotImplementedError

    @property
    def warning(self) -> str | None:
        """One sentence if the page could not be had, or not always."""
        raise NotImplementedError


@contextmanager
def sampled(endpoint: Endpoint, clock: Clock, interval_s: float = INTERVAL_S) -> Iterator[Samples]:
    """While open, look at the endpoint's metrics page every ``interval_s`` seconds, from a thread."""
    yield Samples()


def write_samples(path: Path, samples: Iterable[ServerSample]) -> None:
    """Write them as JSON lines."""
    raise NotImplementedError


def read_samples(path: Path) -> list[ServerSample]:
    """Read what ``write_samples`` wrote; none if there is no file."""
    raise NotImplementedError
