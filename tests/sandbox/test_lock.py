from __future__ import annotations

import os

import pytest

from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox.processes import lock

WHAT = f"test {os.getpid()}"


def test_a_second_holder_waits_no_longer_than_its_limit() -> None:
    told: list[str] = []
    with (
        lock(WHAT),
        pytest.raises(SandboxError, match="Another process has held the lock") as error,
        lock(WHAT, told.append, 0.1),
    ):
        pytest.fail("two held it at once")
    assert told == [f"another `sandbox` command ({WHAT})"]
    assert error.value.hint == f"ss -xlp | grep 'trtllm-hpc {WHAT}'"
    with lock(WHAT, timeout_s=0.1):
        pass
