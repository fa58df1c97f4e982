"""Progress of a running benchmark: the load counts requests, and a separate thread reports them."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_hpc.paths import read_json, write_json
from trtllm_hpc.runtime.records import known_fields

if TYPE_CHECKING:
    from trtllm_hpc.bench.load.messages import LoadReply

_INTERVAL_S = 0.5
"""Between two reports; drawing takes about 1 ms, during which nothing is sent."""
_LINE_PAUSE_S = 10.0
"""Between two lines, where a line is not redrawn."""
_RATE_SPAN_S = 3.0
"""Seconds that the running rate covers."""


@dataclass(frozen=True)
class Step:
    """One pass over one level."""

    level: int = 0
    """Index of the level, from 0."""
    levels: int | None = 1
    """Number of levels; ``None`` while a search looks for the highest rate."""
    label: str = ""
    repeat: int = 0
    """Index of the pass over this level, from 0."""
    repeats: int = 1
    requests: int | None = None
    """Requests of the pass, warm-up included; ``None`` if time ends it."""
    length_s: float | None = None
    """Length of the pass, warm-up included; ``None`` if a number of requests ends it."""

    def __str__(self) -> str:
        """Return, for example, ``level 2 of 4 (8/s), pass 1 of 3``, without counts of one."""
        level = self.label
        if self.levels != 1:
            level = f"level {self.level + 1}" + (f" of {self.levels}" if self.levels else "")
            level += f" ({self.label})" if self.label else ""
        repeat = f"pass {self.repeat + 1} of {self.repeats}" if self.repeats > 1 else ""
        return ", ".join(filter(None, (level, repeat)))


@dataclass(frozen=True)
class Snapshot:
    """The progress at one moment, as ``progress.json`` has it."""

    step: Step
    done: int
    """Ended requests of this pass, including failed ones."""
    errors: int
    elapsed_s: float
    """Seconds since the pass began."""
    rate_per_s: float | None = None
    """Requests that ended per second, lately; ``None`` before the first."""
    tokens_per_s: float | None = None
    """Responses, each about a token, of ended streams per second of this pass; ``None``: no streams."""

    @property
    def share(self) -> float | None:
        """Finished share of the pass: by requests if their number is known, else by time."""
        if self.step.requests:
            return min(1.0, self.done / self.step.requests)
        return min(1.0, self.elapsed_s / self.step.length_s) if self.step.length_s else None

    def __str__(self) -> str:
        """Return the step, what is done, both rates, errors and the time left, as far as they are known."""
        step, left_s = self.step, None
        amount = f"{self.done} requests" if self.done else ""
        if step.length_s is not None:
            left_s = max(0.0, step.length_s - self.elapsed_s)
            amount = f"{min(self.elapsed_s, step.length_s):.0f} of {step.length_s:.0f} s"
        elif step.requests is not None and self.done:  # extrapolated from the pace so far
            left_s = max(0.0, self.elapsed_s / self.done * (step.requests - self.done))
        if step.requests is not None:
            amount = f"{self.done} of {step.requests} requests"
        parts = (
            str(step),
            amount,
            f"{self.rate_per_s:.1f}/s" if self.rate_per_s is not None else "",
            f"about {self.tokens_per_s:.0f} tokens/s" if self.tokens_per_s is not None else "",
            f"{self.errors} error{'' if self.errors == 1 else 's'}" if self.errors else "",
            f"{clock_text(left_s)} left of this pass" if left_s is not None else "",
        )
        return ", ".join(filter(None, parts))


def clock_text(span_s: float) -> str:
    """Format a time span as ``0:20`` or ``1:05:00``, rounded up to seconds."""
    minutes, seconds = divmod(math.ceil(span_s), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes >= 60 else f"{minutes}:{seconds:02}"


class Progress:
    """Counts ended requests.

    The sending thread calls :meth:`count` for each request, which only adds up;
    :meth:`snapshot` does the rest in the thread that reports.
    """

    def __init__(self, step: Step | None = None) -> None:
        self._lock = threading.Lock()
        """Keeps a snapshot from mixing two passes."""
        self.begin(step or Step(label="prepares"))

    def begin(self, step: Step) -> None:
        """Begin a pass: the counts start at 0."""
        with self._lock:
            self._step, self._done, self._errors, self._tokens = step, 0, 0, 0
            self._begun = time.monotonic()
            self._history = deque([(self._begun, 0)])
            self._last: Snapshot | None = None

    def count(self, reply: LoadReply) -> None:
        """Count a request that has ended."""
        self._done += 1
        self._errors += not reply.ok
        if len(reply.chunks) > 1:  # a stream
            self._tokens += len(reply.chunks)

    def snapshot(self) -> Snapshot:
        """Return the progress of the pass; after its last request the snapshot no longer changes."""
        with self._lock:
            if self._last is None or self._last.done != self._step.requests:
                now, done = time.monotonic(), self._done
                self._history.append((now, done))
                while len(self._history) > 2 and now - self._history[1][0] >= _RATE_SPAN_S:
                    self._history.popleft()
                since, done_then = self._history[0]
                rate = (done - done_then) / (now - since) if done and now > since else None
                elapsed_s = now - self._begun
                tokens = self._tokens / elapsed_s if self._tokens and elapsed_s else None
                self._last = Snapshot(self._step, done, self._errors, elapsed_s, rate, tokens)
            return self._last


def write_progress(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot for ``status``, with its sentence for people who read the file."""
    write_json(path, {**asdict(snapshot), "words": str(snapshot)})


def read_progress(path: Path) -> Snapshot | None:
    """Read a file of :func:`write_progress`; ``None`` if it is missing or of another version."""
    try:
        plain: Any = read_json(path)
        step = Step(**known_fields(Step, plain["step"]))
        return Snapshot(**{**known_fields(Snapshot, plain), "step": step})
    except (OSError, AttributeError, ValueError, TypeError, KeyError):
        return None


Show = Callable[[Snapshot], object]


@contextmanager
def reported(progress: Progress, path: Path | None, show: Show | None = None) -> Iterator[None]:
    """Write ``progress`` to ``path`` and call ``show``, twice a second and once more at the end.

    A separate thread does it, because a slow shared file system must not delay the sender.
    """
    if path is None and show is None:
        yield
        return
    ended = threading.Event()

    def report() -> None:
        over = False
        while not over:
            over = ended.is_set()
            snapshot = progress.snapshot()
            if show is not None:
                show(snapshot)
            if path is not None:
                with suppress(OSError):  # a full disk must not end the measurement
                    write_progress(path, snapshot)
            ended.wait(_INTERVAL_S)

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def shown_progress() -> Iterator[Show]:
    """Show the progress on standard error: a terminal redraws one line, a file gets a line every 10 s."""
    from rich.console import Console

    console = Console(stderr=True, emoji=False)
    if not console.is_terminal:
        yield _line_printer()
        return
    from rich.live import Live
    from rich.text import Text

    # The caller's thread draws, because rich's own thread would compete with the sender more often.
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda snapshot: live.update(Text(str(snapshot)), refresh=True)


def _line_printer() -> Show:
    printed_s = time.monotonic()

    def show(snapshot: Snapshot) -> None:
        nonlocal printed_s
        now = time.monotonic()
        if now - printed_s >= _LINE_PAUSE_S:
            printed_s = now
            with suppress(OSError):  # a closed pipe must not end the measurement
                print(f"  {snapshot}", file=sys.stderr, flush=True)

    return show
