"""One builder of an entry at a time, whoever dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from trtllm_hpc.runtime.engine_cache.cache import CacheEntry, EntryHeld


@pytest.fixture
def entry(tmp_path: Path) -> CacheEntry:
    (tmp_path / "entry").mkdir()
    return CacheEntry(tmp_path / "entry")


def test_the_second_learns_who_holds_it(entry: CacheEntry) -> None:
    assert entry.holder() is None
    with entry.locked("job 17 on node-3") as lock:
        assert entry.holder() == "job 17 on node-3"
        with pytest.raises(EntryHeld), entry.locked("another"):
            pass
        assert not lock.is_lost()
    assert entry.holder() is None
    with entry.locked("another"):
        assert lock.is_lost() and entry.holder() == "another"


def test_the_lock_goes_with_its_entry(entry: CacheEntry) -> None:
    with entry.locked("a builder") as lock:
        aside = entry.put_aside()
        assert lock.is_lost() and CacheEntry(aside).holder() == "a builder"
        with pytest.raises(EntryHeld), entry.locked("another"):
            pass
        entry.folder.mkdir()
        with entry.locked("another"):
            assert lock.is_lost()


def test_without_locks_an_unfinished_output_counts_as_being_built(
    entry: CacheEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can be kept out, so nothing that a build may need is removed."""

    def has_none(file: object, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", has_none)
    with entry.locked("one") as one, entry.locked("two") as two:
        assert not (one.excludes or two.excludes or one.is_lost() or two.is_lost())
    assert entry.holder() is None
    (entry.folder / "building").mkdir()
    assert entry.holder() == "another process"


def test_a_lock_has_the_permissions_of_its_folder(entry: CacheEntry) -> None:
    """The next builder may be another member of the group."""
    entry.folder.chmod(0o770)
    before = os.umask(0o077)
    try:
        with entry.locked("a builder"):
            assert (entry.folder / "lock").stat().st_mode & 0o777 == 0o660
    finally:
        os.umask(before)
