"""How far a running benchmark is: counted by the load, looked at by others."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import read_json, write_json

_LATENCIES = 1000
"""Latencies that the running p99 is made of."""
_RATE_SPAN_S = 3.0
"""The rate is that of so many last seconds."""


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
    """How long it will send, warm-up included; ``None`` where a number of requests ends it."""
    then_s: float | None = None
    """Planned length of all passes after it; ``None`` if nobody knows."""

    @property
    def is_last(self) -> bool:
        """Whether no pass follows."""
        return (self.level + 1, self.repeat + 1) == (self.levels, self.repeats)

    @property
    def words(self) -> str:
        """What it is, e.g. ``level 2 of 4 (8/s), pass 1 of 3``; what there is one of goes without saying."""
        label = f" ({self.label})" if self.label else ""
        if self.levels == 1:
            level = self.label
        else:
            level = f"level {self.level + 1}" + (f" of {self.levels}" if self.levels else "") + label
        repeat = f"pass {self.repeat + 1} of {self.repeats}" if self.repeats > 1 else ""
        return ", ".join(word for word in (level, repeat) if word)


@dataclass(frozen=True)
class Snapshot:
    """How far a measurement is at one moment; as it stands in ``progress.json``."""

    step: Step
    done: int
    """Requests of this pass that have ended, those with an error among them."""
    errors: int
    elapsed_s: float
    """Since this pass began."""
    rate_per_s: float | None = None
    """Requests that ended in each of the last seconds; ``None`` before any did."""
    p99_ms: float | None = None
    """Of the latency from schedule, over the last 1,000 whole answers of this pass; nearest rank."""

    @property
    def share(self) -> float | None:
        """How much of the pass is done, from 0 to 1: by requests if their number is known, else by time."""
        if self.step.requests:
            return min(1.0, self.done / self.step.requests)
        return min(1.0, self.elapsed_s / self.step.length_s) if self.step.length_s else None

    @property
    def left_s(self) -> float | None:
        """Until the pass is over: by its plan, else at the pace so far; ``None`` before the first answer."""
        if self.step.length_s is not None:
            return max(0.0, self.step.length_s - self.elapsed_s)
        if self.step.requests is None or not self.done:
            return None
        return max(0.0, self.elapsed_s / self.done * (self.step.requests - self.done))

    @property
    def amount(self) -> str:
        """How much is done, e.g. ``132 of 200 requests`` or, where time ends it, ``12 of 30 s``."""
        if self.step.requests is not None:
            return f"{self.done} of {self.step.requests} requests"
        if self.step.length_s is not None:
            return f"{min(self.elapsed_s, self.step.length_s):.0f} of {self.step.length_s:.0f} s"
        return f"{self.done} requests" if self.done else ""

    @property
    def figures(self) -> str:
        """Rate, errors, latency and the time left, as far as they are known."""
        words = [
            f"{self.rate_per_s:.1f}/s" if self.rate_per_s is not None else "",
            f"{self.errors} error{'' if self.errors == 1 else 's'}" if self.errors else "",
            f"p99 {self.p99_ms:.0f} ms" if self.p99_ms is not None else "",
            self._left(),
        ]
        return ", ".join(word for word in words if word)

    def _left(self) -> str:
        if self.left_s is None:
            return ""
        then_s = 0.0 if self.step.is_last else self.step.then_s
        if then_s is None:
            return f"{_clock(self.left_s)} left of this pass"
        return f"{_clock(self.left_s + then_s)} left"

    def __str__(self) -> str:
        return ", ".join(word for word in (self.step.words, self.amount, self.figures) if word)


def _clock(span_s: float) -> str:
    minutes, seconds = divmod(math.ceil(span_s), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes >= 60 else f"{minutes}:{seconds:02}"


class Progress:
    """What the load counts and others look at.

    :meth:`count` is called for each request by the thread that sends: it only
    adds, and whoever looks works out the rest.
    """

    def __init__(self, step: Step | None = None) -> None:
        self.begin(step or Step(label="prepares"))

    def begin(self, step: Step) -> None:
        """A pass begins: the counts start at 0."""
        self._pass = _Pass(step)

    def count(self, ok: bool, latency_s: float | None = None) -> None:
        """One more request has ended, so many seconds after it was due."""
        now = self._pass
        now.done += 1
        if not ok:
            now.errors += 1
        elif latency_s is not None:
            now.latencies_s.append(latency_s)

    def snapshot(self) -> Snapshot:
        """How far it is now."""
        return self._pass.snapshot()


class _Pass:
    """One object for each pass, so that who looks never sees the counts of two."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.done = self.errors = 0
        self.latencies_s: deque[float] = deque(maxlen=_LATENCIES)
        self._begun = time.monotonic()
        self._seen = deque([(self._begun, 0)])
        self._last: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """As it is now; once all have ended, as it was when that was first seen."""
        if self._last is None or self._last.done != self.step.requests:
            self._last = self._look()
        return self._last

    def _look(self) -> Snapshot:
        now, done = time.monotonic(), self.done
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _RATE_SPAN_S:
            self._seen.popleft()
        then, before = self._seen[0]
        # Copying is one step for the interpreter, so that the sender cannot come between.
        ordered = sorted(self.latencies_s.copy())
        return Snapshot(
            step=self.step,
            done=done,
            errors=self.errors,
            elapsed_s=now - self._begun,
            rate_per_s=(done - before) / (now - then) if done and now > then else None,
            p99_ms=ordered[math.ceil(0.99 * len(ordered)) - 1] * 1e3 if ordered else None,
        )


def write_progress(path: Path, snapshot: Snapshot) -> None:
    """Write it for who follows the run; its sentence too, for who reads the file."""
    write_json(path, {**asdict(snapshot), "words": str(snapshot)})


def read_progress(path: Path) -> Snapshot | None:
    """What :func:`write_progress` wrote; ``None`` if it is not there, or another version's."""
    try:
        plain: Any = read_json(path)
        step = Step(**_known(Step, plain["step"]))
        return Snapshot(**{**_known(Snapshot, plain), "step": step})
    except (ValueError, TypeError, KeyError):
        return None


def _known(kind: type[Step] | type[Snapshot], plain: dict[str, Any]) -> dict[str, Any]:
    return {field.name: plain[field.name] for field in fields(kind) if field.name in plain}
