"""The client's priority while it sends."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from trtllm_hpc.bench.load import real_time_priority


def policies() -> set[int]:
    return {os.sched_getscheduler(int(thread.name)) for thread in Path("/proc/self/task").iterdir()}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may go before others")
def test_every_thread_of_root_goes_first_and_only_meanwhile() -> None:
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    try:
        before = policies()
        with real_time_priority() as first:
            assert first and policies() == {os.SCHED_RR}
        assert policies() == before == {os.SCHED_OTHER}
    finally:
        ended.set()
        other.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may go before others")
def test_threads_that_end_meanwhile_do_no_harm() -> None:
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            threading.Thread(target=lambda: None).start()

    churning = threading.Thread(target=churn)
    churning.start()
    try:
        for _ in range(200):
            with real_time_priority() as first:
                assert first
    finally:
        over.set()
        churning.join()
    assert policies() == {os.SCHED_OTHER}


def test_who_may_not_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    with real_time_priority() as first:
        assert not first and policies() == {os.SCHED_OTHER}
