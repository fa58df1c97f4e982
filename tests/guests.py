"""Asking with a guest's key until the proxy refuses it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from tests.waiting import eventually

SOON_S = 5.0
"""How long after its end a key may still be good."""


@contextmanager
def asking_until_refused(*asks: Callable[[], bool]) -> Iterator[list[Future[float]]]:
    """Ask in threads: first until there is an answer, then until there is none, and return that moment."""
    with ThreadPoolExecutor(len(asks)) as pool:
        yield [pool.submit(_refused_at, ask) for ask in asks]


def _refused_at(ask: Callable[[], bool]) -> float:
    assert eventually(ask), "never let in"
    assert eventually(lambda: not ask()), "never refused"
    return time.time()
