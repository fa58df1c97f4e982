from __future__ import annotations

import threading
from pathlib import Path

import pytest

from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox.lock import lock


def test_a_second_holder_waits_no_longer_than_it_says(tmp_path: Path) -> None:
    told = []
    with (
        lock(tmp_path / "x", 1),
        pytest.raises(SandboxError, match="Another process has held"),
        lock(tmp_path / "x", 0.1, lambda: told.append("waiting")),
    ):
        pytest.fail("two held it at once")
    assert told == ["waiting"]


def test_a_holder_that_removes_the_folder_lets_the_next_one_have_a_new_one(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    waits = threading.Event()
    got = threading.Event()

    def second() -> None:
        with lock(folder, 10, waits.set):
            assert folder.is_dir()
            got.set()

    thread = threading.Thread(target=second)
    with lock(folder, 1):
        thread.start()
        assert waits.wait(10)
        folder.rmdir()
    assert got.wait(10)
    thread.join()
