"""A builder may be suspended at any moment and resume late: it harms nobody, and nobody fails."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path

import pytest

from tests.runtime.engine_cache.builds import MakeRun
from tests.runtime.engine_cache.test_build import GATED, assert_clean, has_waited
from tests.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.thorough]  # each starts two builds and suspends one

SCRIPT = Path(__file__).with_name("suspended_build.py")


class Encounter:
    """A builder that is suspended in the step ``convert``, whose old output is broken; and another."""

    def __init__(self, runs: MakeRun, folder: Path, pattern: str, number: int) -> None:
        engines, logs = folder / "engines", folder / "others"
        shutil.copytree(built(runs, folder.parent / "built"), engines, symlinks=True)
        self.sleeper = runs(engines_folder=str(engines), log=folder / "sleepers")
        self.other = runs(engines_folder=str(engines), log=logs, script=GATED)
        self.gate = folder / "gate"
        for step, name in (("convert", "rank0.safetensors"), ("build", "rank0.engine")):
            (self.sleeper.entry(step).output / name).write_bytes(b"cut")
        entry = str(self.sleeper.entry("convert").folder)
        command = [sys.executable, "-I", "-S", str(SCRIPT), str(self.sleeper.paths.runtime), entry]
        self.first = self.sleeper.start([*command, pattern, str(number)])

    @property
    def has_stopped(self) -> bool:
        """Whether there was such a point; else it comes to its end."""
        assert eventually(lambda: state_of(self.first) in ("T", "Z"))
        return state_of(self.first) == "T"

    def wake_during(self) -> None:
        """Let the other take over, and resume the sleeper during the build of the other."""
        second = self._take_over()
        assert eventually(lambda: list(self.gate.parent.glob("others.*")) or second.poll() is not None)
        os.kill(self.first.pid, signal.SIGCONT)
        assert eventually(lambda: has_waited(self.sleeper) or self.first.poll() is not None)
        self.gate.touch()
        self._both_end_well(second)

    def wake_after(self) -> None:
        """Resume the sleeper after the build of the other."""
        self.gate.touch()
        second = self._take_over()
        assert second.wait(60) == 0
        before = self._times()
        os.kill(self.first.pid, signal.SIGCONT)
        self._both_end_well(second)
        assert self._times() == before

    def _take_over(self) -> subprocess.Popen[str]:
        return self.other.start(GATE=str(self.gate), TRTLLM_HPC_LOCK_DEAD_SECONDS="0.4")

    def _both_end_well(self, second: subprocess.Popen[str]) -> None:
        output = [process.communicate(timeout=60)[0] for process in (self.first, second)]
        assert (self.first.returncode, second.returncode) == (0, 0), output
        assert "another build has taken over" not in output[1]
        assert len(self.other.built()) == len(set(self.other.built())), "it was disturbed, and built again"
        assert_clean(self.sleeper)
        assert_clean(self.other)

    def _times(self) -> dict[Path, int]:
        outputs = [self.other.entry(step).output for step in ("convert", "build")]
        return {path: path.stat().st_mtime_ns for output in outputs for path in output.rglob("*")}


def built(runs: MakeRun, engines: Path) -> Path:
    """A cache with the outputs of both steps, which the encounters of a test copy."""
    if not engines.exists():
        assert runs(engines_folder=str(engines), log=engines.with_suffix(".log")).build()[0] == 0
    return engines


def state_of(process: subprocess.Popen[str]) -> str:
    """``T`` when it was stopped, ``Z`` when it has ended: proc(5)."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_builder_may_be_suspended_before_anything_it_does(runs: MakeRun, tmp_path: Path) -> None:
    """It resumes during the other's build and after it by turns: which comes first is left to chance."""
    turns = cycle([Encounter.wake_during, Encounter.wake_after])
    if random.random() < 0.5:
        next(turns)
    met = 0
    for encounter in encounters(runs, tmp_path):
        next(turns)(encounter)
        met += 1
    assert met > 20


def encounters(runs: MakeRun, folder: Path) -> Iterator[Encounter]:
    """One for each point at which a builder may be suspended."""
    for number in count(1):
        encounter = Encounter(runs, folder / str(number), ".", number)
        if not encounter.has_stopped:
            return
        yield encounter
