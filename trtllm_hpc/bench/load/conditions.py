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


@contextmanager
def timed() -> Iterator[Callable[[], ClientUse]]:
    """CPU and wall time of this process from now to the end of the block."""
    began = (time.process_time(), time.monotonic())
    ended = began

    def use() -> ClientUse:
        cpu_s, wall_s = ended[0] - began[0], ended[1] - began[1]
        return ClientUse(cpu_s, wall_s, cpu_s / wall_s if wall_s else 0.0)

    yield use
    ended = (time.process_time(), time.monotonic())
