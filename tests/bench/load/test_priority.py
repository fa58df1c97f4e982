"""The client's priority while it sends."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from trtllm_hpc.bench.load.priority import preferred

AUTOGROUP = Path("/proc/self/autogroup")


def session() -> int | None:
    found = re.search(r"nice (-?\d+)", AUTOGROUP.read_text()) if AUTOGROUP.exists() else None
    return int(found[1]) if found else None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may go before others")
def test_root_goes_first_and_only_meanwhile() -> None:
    before = (os.getpriority(os.PRIO_PROCESS, 0), session())
    with preferred() as nice:
        assert nice == os.getpriority(os.PRIO_PROCESS, 0) == -10
        assert session() in (-10, None)
    assert (os.getpriority(os.PRIO_PROCESS, 0), session()) == before


def test_who_may_not_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refused)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with preferred() as nice:
        assert nice == before
