"""The load generator's real-time priority."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from trtllm_hpc.bench.load.process import real_time_priority


def policies() -> set[int]:
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that was joined may take a moment to go
            found.add(os.sched_getscheduler(int(thread.name)))
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise its priority")
def test_every_thread_has_real_time_priority_and_loses_it_again() -> None:
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    try:
        before = policies()
        with real_time_priority() as raised:
            assert raised and policies() == {os.SCHED_RR}
        assert policies() == before == {os.SCHED_OTHER}
    finally:
        ended.set()
        other.join()


def test_without_permission_priority_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    with real_time_priority() as raised:
        assert not raised and policies() == {os.SCHED_OTHER}
