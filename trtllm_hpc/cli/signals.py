"""Ends that others bring about."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminating_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end what runs meanwhile as Ctrl-C does. Slurm sends it some time before it kills a job."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
