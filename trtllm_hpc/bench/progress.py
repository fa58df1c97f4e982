"""How far a running benchmark is: in a file for others, in a line for a terminal."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from trtllm_hpc.paths import write_json

_LATENCIES = 1000
"""Latencies that the running p99 is made of."""
_RATE_SPAN_S = 3.0
"""The rate shown is that of so many last seconds."""


@dataclass(frozen=True)
class Step:
    """One pass over one level."""

    level: int = 0
    """Which level, counted from 0."""
    levels: int | None = 1
    """How many there are; ``None`` while a search looks for the highest rate."""
    label: str = ""
    """What the level is, e.g. ``8/s``."""
    repeat: int = 0
    """Which pass over it, counted from 0."""
    repeats: int = 1
    requests: int | None = None
    """Requests that it will send, warm-up included; ``None`` where time ends it."""
    length_s: float | None = None
    """How long it sends, warm-up included; ``None`` where a number of requests ends it."""
    then_s: float | None = None
    """Planned length of all passes after it, 0 for the last; ``None`` if nobody knows."""


@dataclass(frozen=True)
class Snapshot:
    """How far a measurement is at one moment; as it stands in ``progress.json``."""

    level: int
    levels: int | None
    label: str
    repeat: int
    repeats: int
    done: int
    """Requests of this pass that have ended, those with an error among them."""
    of: int | None
    errors: int
    elapsed_s: float
    """Since this pass began."""
    length_s: float | None
    rate_per_s: float | None = None
    """Requests that ended in each of the last seconds; ``None`` before any did."""
    p99_ms: float | None = None
    """Of the latency from schedule, over the last 1,000 whole answers."""
    left_s: float | None = None
    """Until the end of the measurement, or of this pass where nobody knows what follows."""

    @property
    def share(self) -> float | None:
        """How much of the pass is done, 0 to 1: by requests where they are known, else by time."""
        if self.of is not None:
            return min(1.0, self.done / self.of) if self.of else 1.0
        return min(1.0, self.elapsed_s / self.length_s) if self.length_s else None


class Progress:
    """What the load counts and others look at.

    The load calls :meth:`count` for each request, in the thread that sends:
    it only adds, everything else is worked out by whoever looks.
    """

    def __init__(self, step: Step | None = None) -> None:
        self.begin(step or Step())

    def begin(self, step: Step) -> None:
        """A pass begins: counts start at 0."""
        raise NotImplementedError

    def count(self, ok: bool, latency_s: float | None = None) -> None:
        """One more request has ended, so many seconds after it was due."""
        raise NotImplementedError

    def snapshot(self) -> Snapshot:
        """How far it is now."""
        raise NotImplementedError


Show = Callable[[Snapshot], None]


@contextmanager
def reported(progress: Progress, path: Path | None, show: Show | None = None) -> Iterator[None]:
    """While open, write ``progress`` to ``path`` (if any) twice a second and pass it to ``show`` five times.

    A thread does it: a slow shared file system must not hold up the sender.
    """
    yield


@contextmanager
def terminal_line() -> Iterator[Show | None]:
    """A live line on standard error, if that is a terminal; else ``None``."""
    yield None
