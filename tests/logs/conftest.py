from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from trtllm_hpc.logs.causes import scan


@contextmanager
def searched_with(engine: str) -> Iterator[None]:
    """Search logs as small ones are (``sieve``), or as large ones (``vectorscan``)."""
    scan._sieve.cache_clear()
    scan._sieve().expect(1 << 30 if engine == "vectorscan" else 0)
    yield
    scan._sieve.cache_clear()


@pytest.fixture(params=["sieve", "vectorscan"])
def search(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with each way to search logs."""
    with searched_with(request.param):
        yield request.param
