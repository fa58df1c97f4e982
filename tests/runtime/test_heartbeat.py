"""What lives: heartbeats, timed by the reader's clock, and what stands still."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.runtime.conftest import Runtime
from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime import heartbeat
from trtllm_hpc.runtime.heartbeat import (
    ALL_WELL,
    BEAT_S,
    Heartbeat,
    SilenceWatch,
    Troubles,
    stopped_below,
)
from trtllm_hpc.runtime.leader import Leader
from trtllm_hpc.runtime.process import state_of
from trtllm_hpc.runtime.records import read_events
from trtllm_hpc.runtime.server_spec import RankOptions, ServerSpec
from trtllm_hpc.runtime.stop import SUPERVISOR


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
        assert eventually(lambda: state_of(child.pid) == "T")
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
        assert eventually(lambda: state_of(child.pid) != "T")
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


# The leader watches the supervisor and its ranks -----------------------------------------


def test_only_a_silent_supervisor_is_in_trouble_not_one_with_a_stopped_child(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRTLLM_HPC_ADDRESS", "TRTLLM_HPC_HTTP_PORT"):
        monkeypatch.setenv(name, "1")
    clock, paths = Clock(monkeypatch), runtime.paths
    own, theirs = Heartbeat(paths.rank_heartbeat("serve", 0)), paths.rank_heartbeat(SUPERVISOR, 0)
    options = RankOptions(0, 2, 1, "trt", 1.0, ServerSpec("openai", ["serve"]), hang_seconds=45.0)
    leader = Leader(paths, options)

    def seconds(count: int, *, beats: bool) -> str | None:
        found = None
        for _ in range(count):
            clock.now += 1
            own.beat()
            if beats:
                theirs.write_text(f"{clock.now // BEAT_S} haproxy (12)".ljust(64))
            found = leader.supervisor_fault({})
        return found

    assert seconds(60, beats=True) is None and read_events(paths) == []
    assert seconds(14, beats=False) is None
    [trouble] = read_events(paths, "serve")
    why = trouble.data["why"]
    assert why.startswith("the supervisor of the run gives no sign of life")
    assert seconds(40, beats=False) == why
    assert seconds(6, beats=True) is None
    assert read_events(paths, "serve")[-1].data == {"part": "supervisor", "why": None}


def test_a_stopped_process_of_a_rank_is_in_trouble_until_it_goes_on(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRTLLM_HPC_ADDRESS", "TRTLLM_HPC_HTTP_PORT"):
        monkeypatch.setenv(name, "1")
    options = RankOptions(0, 2, 1, "trt", 1.0, ServerSpec("openai", ["serve"]), step="serve.1")
    leader = Leader(runtime.paths, options)
    for stopped in ({1: "its process python (7) is stopped (SIGSTOP)"}, {}):
        leader.supervisor_fault(stopped)
    assert [event.data for event in read_events(runtime.paths, "serve")] == [
        {"part": "serve.1/1", "why": "rank 1 of instance 1: its process python (7) is stopped (SIGSTOP)"},
        {"part": "serve.1/1", "why": None},
    ]


# What stands still: named at the second look, given up after nine intervals ----------------

WHY = "process 12 on n1 is stopped (SIGSTOP): haproxy -db"


def noted(paths: RunPaths) -> list[tuple[str, str | None]]:
    return [(event.data["part"], event.data["why"]) for event in read_events(paths, "serve")]


def test_a_fault_is_noted_at_the_second_look_and_given_up_after_45_s(runtime: Runtime) -> None:
    troubles, paths = Troubles(runtime.paths, "serve"), runtime.paths
    assert troubles.look({"12": WHY}) == {} and noted(paths) == []
    assert troubles.look({"12": WHY}) == {} and noted(paths) == [("12", WHY)]
    for _ in range(7):
        assert troubles.look({"12": WHY}) == {}
    assert troubles.look({"12": WHY, "13": WHY}) == {"12": f"{WHY}, for 45 s"}
    assert troubles.look({}) == {} and noted(paths) == [("12", WHY), ("12", None)]


def test_a_stopped_process_is_named_with_its_command() -> None:
    child = subprocess.Popen(["sleep", "3600"])
    try:
        os.kill(child.pid, signal.SIGSTOP)
        assert eventually(lambda: state_of(child.pid) == "T")
        [why] = stopped_below(os.getpid()).values()
        assert why.startswith(f"process {child.pid} on ") and why.endswith("is stopped (SIGSTOP): sleep 3600")
        assert stopped_below(os.getpid(), {child.pid}) == {}
    finally:
        child.kill()
        child.wait()


def test_a_stopped_process_of_the_build_is_noted_until_its_batch_script_ends(runtime: Runtime) -> None:
    batch_script = subprocess.Popen(["sleep", "3600"])
    beat = runtime.paths.rank_heartbeat("build", 0)
    beat.parent.mkdir(exist_ok=True)
    beat.write_text("1 python (7)")
    watch = runtime.start("watch-build", f"--while-pid={batch_script.pid}")
    assert eventually(lambda: read_events(runtime.paths, "build"))
    [trouble] = read_events(runtime.paths, "build")
    assert trouble.data["why"] == "the build: its process python (7) is stopped (SIGSTOP)"
    batch_script.kill()
    batch_script.wait()
    watch.communicate(timeout=60)
    assert watch.returncode == 0
