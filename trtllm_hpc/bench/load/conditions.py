"""What holds in the process while the load runs."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from trtllm_hpc.bench.summary import ClientUse


@contextmanager
def quiet() -> Iterator[None]:
    """No search for garbage meanwhile: it would hold up a send, and nothing here makes any."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


@contextmanager
def interruptible(interrupt: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C ends the load, and what was measured is kept; a second one is as everywhere."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before == signal.SIG_IGN:
        yield
        return

    def once() -> None:
        interrupt()
        restore()

    def restore() -> None:
        with suppress(RuntimeError):
            loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)

    loop.add_signal_handler(signal.SIGINT, once)
    try:
        yield
    finally:
        restore()


class Use:
    """CPU and wall time of this process, from when it is made."""

    def __init__(self) -> None:
        self._began = self._ended = _times()
        self._all_sent: _Times | None = None

    def all_sent(self) -> None:
        """Nothing more is to be sent: the slowest answers are waited for, with ever less to do."""
        self._all_sent = self._all_sent or _times()

    def end(self) -> None:
        """It is over."""
        self._ended = _times()

    def total(self) -> ClientUse:
        """What it has used until the end."""
        (cpu_s, wall_s), sending = self._since_begun(self._ended), self._since_begun(self._all_sent)
        shares = [cpu_s / wall_s for cpu_s, wall_s in ((cpu_s, wall_s), sending) if wall_s > 0]
        return ClientUse(cpu_s, wall_s, max(shares, default=0.0))

    def _since_begun(self, moment: _Times | None) -> _Times:
        cpu_s, wall_s = moment or self._began
        return cpu_s - self._began[0], wall_s - self._began[1]


_Times = tuple[float, float]
"""CPU and wall."""


def _times() -> _Times:
    return time.process_time(), time.monotonic()
