"""Heartbeats of ranks, timed by the reader's clock."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.waiting import eventually
from trtllm_hpc.runtime import heartbeat
from trtllm_hpc.runtime.heartbeat import ALL_WELL, BEAT_S, Heartbeat, SilenceWatch


class Clock:
    """The monotonic clock of this test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(f"{heartbeat.__name__}.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def looks(watch: SilenceWatch, clock: Clock, seconds: int, *beats: Heartbeat) -> dict[int, str]:
    found: dict[int, str] = {}
    for _ in range(seconds):
        clock.now += 1
        for beat in beats:
            beat.beat()
        found = dict(watch.look().silent)
    return found


def test_only_a_rank_that_beat_and_then_fell_silent_is_silent(clock: Clock, tmp_path: Path) -> None:
    files = {rank: tmp_path / str(rank) for rank in range(3)}
    files[2].write_text("7 ")  # left by an earlier attempt
    beats = [Heartbeat(files[rank]) for rank in (0, 1)]
    watch = SilenceWatch(files, 20.0, files[0])
    assert looks(watch, clock, 60, *beats) == {}
    assert looks(watch, clock, 15, beats[0]) == {}
    assert list(watch.look().suspects) == [1]
    silent = looks(watch, clock, 15, beats[0])
    assert list(silent) == [1] and "no sign of life for" in silent[1]
    # It counts no time of files: an hour more or less on a node's clock changes nothing.
    os.utime(files[1], (0, 0))
    assert list(looks(watch, clock, 1, beats[0])) == [1]
    assert looks(watch, clock, int(BEAT_S), *beats) == {}


def test_a_reader_that_was_suspended_blames_nobody(clock: Clock, tmp_path: Path) -> None:
    beat = Heartbeat(tmp_path / "0")
    watch = SilenceWatch({0: tmp_path / "0"}, 20.0, tmp_path / "0")
    looks(watch, clock, 12, beat)
    clock.now += 3600  # the job was suspended, or the file server was away
    assert watch.look().silent == {}
    assert looks(watch, clock, 3, beat) == {}


def test_nobody_is_silent_while_the_reader_itself_cannot_write(clock: Clock, tmp_path: Path) -> None:
    """The run folder is full, or read-only: then all heartbeats stop, and the server still serves."""
    beats = [Heartbeat(tmp_path / str(rank)) for rank in (0, 1)]
    watch = SilenceWatch({rank: tmp_path / str(rank) for rank in (0, 1)}, 20.0, tmp_path / "0")
    assert looks(watch, clock, 30, *beats) == {}
    assert looks(watch, clock, 60) == {} == watch.look().suspects
    assert looks(watch, clock, 30, *beats) == {}
    assert list(looks(watch, clock, 30, beats[0])) == [1]


def test_a_process_that_stays_stopped_is_named_and_given_up_at_the_limit(
    clock: Clock, tmp_path: Path
) -> None:
    beat, watch = Heartbeat(tmp_path / "0"), SilenceWatch({0: tmp_path / "0"}, 20.0, tmp_path / "0")
    child = subprocess.Popen(["sleep", "60"])
    try:
        os.kill(child.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{child.pid}/stat")
        assert eventually(lambda: stat.read_text().split()[2] == "T")
        looks(watch, clock, int(BEAT_S), beat)
        assert watch.look().suspects == {}
        looks(watch, clock, int(BEAT_S) + 1, beat)
        stopped = f"its process sleep ({child.pid}) is stopped (SIGSTOP)"
        assert watch.look().suspects == {0: stopped}
        looks(watch, clock, 12, beat)
        assert watch.look().given_up == {}
        looks(watch, clock, 3, beat)
        assert watch.look().given_up == {0: f"{stopped}, for 21 s"}
        os.kill(child.pid, signal.SIGCONT)
        assert eventually(lambda: stat.read_text().split()[2] != "T")
        looks(watch, clock, int(BEAT_S), beat)
        assert watch.look() == ALL_WELL
    finally:
        child.kill()
        child.wait()


def test_every_beat_has_the_same_length(clock: Clock, tmp_path: Path) -> None:
    """So a full disk does not silence a rank."""
    beat, sizes = Heartbeat(tmp_path / "0"), set()
    for _ in range(12):
        clock.now += BEAT_S
        beat.beat()
        sizes.add((tmp_path / "0").stat().st_size)
    assert len(sizes) == 1


def test_a_rank_that_falls_silent_after_its_first_beat_is_noticed(clock: Clock, tmp_path: Path) -> None:
    own, rank = Heartbeat(tmp_path / "own"), Heartbeat(tmp_path / "1")
    watch = SilenceWatch({1: rank.file}, None, own.file)
    for second in range(20):
        clock.now += 1
        own.beat()
        seen = watch.look()
        if second == 0:
            rank.beat()
    assert "no sign of life" in seen.suspects[1]
