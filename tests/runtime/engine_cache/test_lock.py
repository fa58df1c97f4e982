"""One owner at a time, whoever dies, is suspended or falls silent."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runs.clock import Clock
from tests.runtime.engine_cache.builds import tree
from tests.waiting import eventually
from trtllm_hpc.runtime.engine_cache.lock import Holder, Lock, Owner, Watch, find_holder, try_lock

pytestmark = pytest.mark.usefixtures("fast")


def owner() -> Owner:
    return Owner.this_process("17")


def elsewhere() -> Owner:
    """An owner of which only the lock can be seen from here."""
    return replace(owner(), host="node-9", machine="another boot pid:[1]", pid=1)


def locked(folder: Path, who: Owner | None = None, watch: Watch | None = None) -> Lock:
    lock = try_lock(folder, who or owner(), watch or Watch())
    assert isinstance(lock, Lock), lock
    return lock


def taken_over(folder: Path, watch: Watch) -> Lock:
    """The lock, once its silent owner is taken for dead."""
    lock = eventually(lambda: isinstance(it := try_lock(folder, owner(), watch), Lock) and it)
    assert isinstance(lock, Lock)
    return lock


def test_the_second_learns_who_holds_it(tmp_path: Path) -> None:
    lock = locked(tmp_path)
    held = try_lock(tmp_path, owner(), Watch())
    assert isinstance(held, Holder) and held.owner == owner()
    assert str(held) == f"job 17 on {os.uname().nodename}"
    assert lock.is_mine() and not lock.is_lost
    lock.release()
    assert find_holder(tmp_path) is None and tree(tmp_path) == []
    again = locked(tmp_path)
    assert again.is_mine() and not lock.is_mine()
    again.release()


def test_of_many_exactly_one_gets_it(tmp_path: Path) -> None:
    start = threading.Barrier(16)

    def attempt(_: int) -> Lock | Holder:
        start.wait()
        return try_lock(tmp_path, owner(), Watch())

    with ThreadPoolExecutor(16) as pool:
        won = [lock for lock in pool.map(attempt, range(16)) if isinstance(lock, Lock)]
    assert len(won) == 1 and won[0].is_mine()
    won[0].release()


def test_of_many_that_follow_a_dead_owner_exactly_one_gets_it(tmp_path: Path) -> None:
    dead = locked(tmp_path, replace(owner(), ticks=1))
    test_of_many_exactly_one_gets_it(tmp_path)
    assert not dead.is_mine()
    dead.release()
    assert tree(tmp_path) == []


def test_a_reused_process_number_is_no_owner(tmp_path: Path) -> None:
    lock = locked(tmp_path, replace(owner(), ticks=1))
    locked(tmp_path).release()
    assert not lock.is_mine()
    lock.release()


def test_an_owner_that_releases_late_leaves_its_successor_alone(tmp_path: Path) -> None:
    late = locked(tmp_path, elsewhere())
    late._stop.set()
    lock = taken_over(tmp_path, Watch())
    (lock.work / "output").mkdir()
    late.release()
    assert lock.is_mine() and (lock.work / "output").is_dir()
    lock.release()


@pytest.mark.long
def test_an_owner_elsewhere_lives_as_long_as_its_heart_beats(tmp_path: Path) -> None:
    lock = locked(tmp_path, elsewhere())
    watch = Watch()
    until = time.monotonic() + 2.5  # longer than the silence that makes it dead
    while time.monotonic() < until:
        assert isinstance(try_lock(tmp_path, owner(), watch), Holder)
        time.sleep(0.05)
    lock._stop.set()  # from here on silent, as after a power cut
    begun = time.monotonic()
    successor = taken_over(tmp_path, watch)
    assert time.monotonic() - begun > 1.0
    successor.release()


def test_a_pause_between_two_looks_is_not_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader, or the file server under both, stood still: the owner could not be heard."""
    clock = Clock()
    monkeypatch.setattr("trtllm_hpc.runtime.engine_cache.lock.time", clock)
    locked(tmp_path, elsewhere())._stop.set()
    watch = Watch()
    assert isinstance(try_lock(tmp_path, owner(), watch), Holder)
    clock.sleep(3600)
    assert isinstance(try_lock(tmp_path, owner(), watch), Holder)


def test_a_damaged_record_is_watched_and_taken_over_too(tmp_path: Path) -> None:
    record = tmp_path / "building" / "0123456789abcdef" / "owner.json"
    record.parent.mkdir(parents=True)
    record.write_bytes(b"")
    watch = Watch()
    held = try_lock(tmp_path, owner(), watch)
    assert isinstance(held, Holder) and held.owner is None
    taken_over(tmp_path, watch).release()


@pytest.mark.parametrize("left", ["building", "building/0123456789abcdef/output"])
def test_what_nobody_owns_is_taken_at_once(tmp_path: Path, left: str) -> None:
    """A builder was killed while it released, or one of its processes made its folder anew."""
    (tmp_path / left).mkdir(parents=True)
    locked(tmp_path).release()
    assert tree(tmp_path) == []


def test_a_folder_made_again_in_a_held_entry_changes_nothing(tmp_path: Path) -> None:
    lock = locked(tmp_path)
    (tmp_path / "building" / "0123456789abcdef" / "output").mkdir(parents=True)
    held = try_lock(tmp_path, owner(), Watch())
    assert isinstance(held, Holder) and held.owner == owner() and lock.is_mine()
    lock.release()
    locked(tmp_path).release()
    assert tree(tmp_path) == []


def test_the_lock_goes_with_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "entry"
    folder.mkdir()
    lock = locked(folder)
    folder.rename(tmp_path / "removed")
    assert eventually(lambda: lock.is_lost) and not lock.is_mine()
    lock.release()
    with pytest.raises(FileNotFoundError):
        try_lock(folder, owner(), Watch())


def test_an_owner_whose_folder_was_made_again_leaves_the_new_lock_alone(tmp_path: Path) -> None:
    folder = tmp_path / "entry"
    folder.mkdir()
    lost = locked(folder)
    folder.rename(tmp_path / "removed")
    folder.mkdir()
    lock = locked(folder)
    assert eventually(lambda: lost.is_lost) and not lost.is_mine()
    lost.release()
    assert find_holder(folder) is not None and lock.is_mine()
    lock.release()


def test_an_owner_that_cannot_read_its_lock_for_a_moment_has_not_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server that is away for a moment must not cost the work of hours."""
    monkeypatch.setenv("TRTLLM_HPC_LOCK_BEAT_SECONDS", "60")
    lock = locked(tmp_path)

    def fails(*_: object) -> int:
        raise OSError("the server does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        assert not lock.is_mine() and not lock.is_lost
    assert lock.is_mine()
    lock.release()


def test_a_lock_has_the_permissions_of_its_folder(tmp_path: Path) -> None:
    """The next builder may be another member of the group, who must be able to move the folder."""
    tmp_path.chmod(0o770)
    before = os.umask(0)
    try:
        lock = locked(tmp_path)
    finally:
        os.umask(before)
    assert lock.work.stat().st_mode & 0o777 == lock.work.parent.stat().st_mode & 0o777 == 0o770
    assert (lock.work / "owner.json").stat().st_mode & 0o777 == 0o660
    lock.release()
