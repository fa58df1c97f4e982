"""Waiting for something to become true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def eventually(true: Callable[[], Any], timeout_s: float = 60) -> Any:
    """Wait until something holds. Returns it, or its last false value.

    The limit is far above what a busy machine needs: it ends a test that waits in vain. Another one is given
    where that time is what is promised.

    Between two looks it sleeps three times as long as a look takes, 20 ms at
    least: a command that is run again and again would keep a processor from
    what is waited for.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        found = true()
        ended = time.monotonic()
        if found or ended >= deadline:
            return found
        time.sleep(min(max(0.02, 3 * (ended - began)), 2.0))
