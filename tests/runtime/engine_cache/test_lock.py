"""One owner at a time, whoever dies, stands still or falls silent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.conftest import eventually
from trtllm_hpc.runtime.engine_cache.lock import (
    Held,
    Lock,
    Owner,
    Watch,
    highest,
    living_owner,
    try_lock,
)

pytestmark = pytest.mark.usefixtures("fast")

ELSEWHERE = "another boot pid:[1]"


def owner(step: str = "build") -> Owner:
    return Owner.this_process(step, "/runs/a", "17")


def elsewhere() -> Owner:
    """An owner of whom nothing can be seen but its lock."""
    return replace(owner(), host="node-9", machine=ELSEWHERE, pid=1)


def locked(folder: Path, who: Owner | None = None, watch: Watch | None = None) -> Lock:
    lock = try_lock(folder, who or owner(), watch or Watch())
    assert isinstance(lock, Lock), lock
    return lock


def test_the_second_is_told_who_holds_it(tmp_path: Path) -> None:
    lock = locked(tmp_path)
    held = try_lock(tmp_path, owner(), Watch())
    assert isinstance(held, Held) and held.owner == lock.owner
    assert str(held.owner) == f"job 17 on {os.uname().nodename}"
    assert lock.is_mine() and not lock.is_lost
    lock.release()
    assert living_owner(tmp_path) is None
    again = locked(tmp_path)
    assert again.generation == lock.generation + 1 and not lock.is_mine()
    again.release()


def test_of_many_exactly_one_gets_it(tmp_path: Path) -> None:
    won: list[Lock] = []
    start = threading.Barrier(16)

    def attempt() -> None:
        start.wait()
        lock = try_lock(tmp_path, owner(), Watch())
        if isinstance(lock, Lock):
            won.append(lock)

    threads = [threading.Thread(target=attempt) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and won[0].is_mine()
    won[0].release()


HOLD = """
import sys
from pathlib import Path
from trtllm_hpc.runtime.engine_cache.lock import Owner, Watch, try_lock
lock = try_lock(Path(sys.argv[1]), Owner.this_process("build", "/runs/b", "18"), Watch())
print(lock.generation, flush=True)
input()
print(lock.is_lost, lock.is_mine(), flush=True)
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until it is told to look again."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "1\n"
    return process


def test_a_killed_owner_on_this_machine_is_followed_at_once(tmp_path: Path) -> None:
    process = hold(tmp_path)
    assert isinstance(try_lock(tmp_path, owner(), Watch()), Held)
    process.kill()
    process.communicate()
    assert living_owner(tmp_path) is None
    lock = locked(tmp_path)  # by the first look, without a wait
    assert lock.generation == 2
    lock.release()


def test_a_reused_process_number_is_no_owner(tmp_path: Path) -> None:
    lock = locked(tmp_path, replace(owner(), ticks=1))
    locked(tmp_path).release()
    assert not lock.is_mine()
    lock.release()


def test_an_owner_that_stands_still_loses_it_and_learns_so(tmp_path: Path) -> None:
    process = hold(tmp_path)
    os.kill(process.pid, signal.SIGSTOP)
    watch = Watch()
    lock = eventually(lambda: isinstance(it := try_lock(tmp_path, owner(), watch), Lock) and it, 10)
    assert lock.generation == 2
    os.kill(process.pid, signal.SIGCONT)
    output, _ = process.communicate("\n", timeout=10)
    assert output.split() in (["True", "False"], ["False", "False"])
    assert lock.is_mine()
    lock.release()


@pytest.mark.long
def test_an_owner_elsewhere_lives_as_long_as_it_counts(tmp_path: Path) -> None:
    lock = locked(tmp_path, elsewhere())
    watch = Watch()
    until = time.monotonic() + 2.5  # longer than the silence that makes it dead
    while time.monotonic() < until:
        assert isinstance(try_lock(tmp_path, owner(), watch), Held)
        time.sleep(0.05)
    lock._stop.set()  # from here on silent, as after a power cut
    begun = time.monotonic()
    taken = eventually(lambda: isinstance(it := try_lock(tmp_path, owner(), watch), Lock) and it, 10)
    assert time.monotonic() - begun > 1.0
    assert taken.generation == 2
    taken.release()


def test_time_in_which_nobody_looked_is_no_silence(tmp_path: Path) -> None:
    """The reader, or the file server under both, stood still: the owner could not be heard."""
    locked(tmp_path, elsewhere())._stop.set()
    watch = Watch()
    assert isinstance(try_lock(tmp_path, owner(), watch), Held)
    time.sleep(2)
    assert isinstance(try_lock(tmp_path, owner(), watch), Held)


def test_a_lock_cut_short_while_it_was_written_is_taken_over_too(tmp_path: Path) -> None:
    (tmp_path / "lock.4").write_bytes(b"")
    watch = Watch()
    held = try_lock(tmp_path, owner(), watch)
    assert isinstance(held, Held) and held.owner is None
    lock = eventually(lambda: isinstance(it := try_lock(tmp_path, owner(), watch), Lock) and it, 10)
    assert lock.generation == 5
    lock.release()


def test_the_lock_goes_with_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "entry"
    folder.mkdir()
    lock = locked(folder)
    folder.rename(tmp_path / "removed")
    assert eventually(lambda: lock.is_lost, 5) and not lock.is_mine()
    lock.release()
    with pytest.raises(FileNotFoundError):
        try_lock(folder, owner(), Watch())


def test_an_owner_whose_folder_was_made_anew_leaves_the_lock_there_alone(tmp_path: Path) -> None:
    """In a new folder the numbers begin anew: another's lock has the name of the lost one."""
    folder = tmp_path / "entry"
    folder.mkdir()
    lost = locked(folder)
    folder.rename(tmp_path / "removed")
    folder.mkdir()
    lock = locked(folder)
    assert lock.generation == lost.generation
    assert eventually(lambda: lost.is_lost) and not lost.is_mine()
    lost.release()
    assert living_owner(folder) is not None and lock.is_mine()
    lock.release()


def test_an_owner_that_cannot_read_its_lock_for_a_moment_has_not_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server that is away for a moment must not cost the work of hours."""
    monkeypatch.setenv("TRTLLM_HPC_LOCK_BEAT_SECONDS", "60")
    lock = locked(tmp_path)
    file, aside = tmp_path / "lock.1", tmp_path / "aside"
    file.rename(aside)
    file.mkdir()
    assert not lock.is_mine() and not lock.is_lost
    file.rmdir()
    aside.rename(file)
    assert lock.is_mine()
    lock.release()


def test_a_lock_is_as_open_as_its_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    before = os.umask(0)
    try:
        lock = locked(tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "lock.1").stat().st_mode & 0o777 == 0o660
    held = highest(tmp_path)
    assert held is not None and held.generation == 1
    lock.release()
