"""What ``make test`` does about failures, and ``make test-unstable``, shown by folders of toy tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually

ROOT = Path(__file__).parents[1]

TOY = """
import os, pytest
from pathlib import Path

def times(name):
    with Path(__file__).with_name(name).open("a") as file:
        file.write(".")
    return Path(__file__).with_name(name).stat().st_size

def test_good(): pass
"""
UNSTABLE = """
@pytest.mark.parametrize("it", {names})
def test_unstable(it): assert times(it) > 1, f"{{it}} came too late"
"""
SCRIPT = """
set -eu
source {root}/.ci/parts {bin}
part 'first part' {workers} 'not alone'
{more}
whole
"""

Run = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Run]:
    """Starts a command beside the toy tests, as from a terminal: Ctrl-C is a signal for its whole group."""
    started = []

    def command(*words: str) -> subprocess.Popen[str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        started.append(
            subprocess.Popen(
                words,
                cwd=tmp_path,
                env=env | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
        return started[-1]

    yield command
    for each in started:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
        each.communicate()


@pytest.fixture
def start(tmp_path: Path, command: Run) -> Run:
    """Starts toy tests with what `.ci/test` runs its parts with."""

    def start(tests: str, more: str = "", workers: int = 0) -> subprocess.Popen[str]:
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\ntestpaths = test_toy.py\n")
        (tmp_path / "test_toy.py").write_text(TOY + tests)
        script = SCRIPT.format(root=ROOT, bin=Path(sys.executable).parent, workers=workers, more=more)
        return command("bash", "-c", script)

    return start


def ended(run: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit code, the output, and what its last line counts."""
    output, _ = run.communicate(timeout=120)
    last = re.fullmatch(r"=+ (.*) in \d+s =+", output.splitlines()[-1])
    return run.returncode, output, last[1] if last else ""


def test_what_passes_by_itself_is_unstable_and_fails_no_run(start: Run) -> None:
    names = ["one", "a name: [with] spaces, a::b", "three"]
    more = "part 'second part' 0 alone"
    alone = "@pytest.mark.alone\ndef test_alone(): pass\ndef test_skipped(): pytest.skip('so')\n"
    code, output, counted = ended(start(UNSTABLE.format(names=names) + alone, more, workers=2))
    assert (code, counted) == (0, "2 passed, 1 skipped, 3 unstable"), output
    listed = output.partition("== unstable")[2]
    for name in names:
        assert f"test_toy.py::test_unstable[{name}]\n    test_toy.py:" in listed
        assert f"AssertionError: {name} came too late\n" in listed


def test_more_than_three_unstable_tests_fail_the_run(start: Run) -> None:
    code, output, counted = ended(start(UNSTABLE.format(names=list("abcd"))))
    assert (code, counted) == (1, "1 passed, 4 unstable"), output
    assert "The run fails: more than 3 tests are unstable" in output


def test_what_fails_twice_fails_the_run_with_both_outputs(start: Run) -> None:
    fails = "def test_wrong(): assert not times('wrong'), f'for the {times(\"wrong\") - 1}. time'\n"
    teardown = """
@pytest.fixture
def ends_badly():
    yield
    assert times("ends") > 1, "could not take down"

def test_teardown(ends_badly): pass
"""
    code, output, counted = ended(start(UNSTABLE.format(names=["one"]) + teardown + fails))
    assert (code, counted) == (1, "1 failed, 1 passed, 2 unstable"), output
    assert "== failed\ntest_toy.py::test_wrong\n    test_toy.py:" in output
    assert "E   AssertionError: for the 1. time" in output
    assert "E   AssertionError: for the 3. time" in output
    assert "AssertionError: could not take down" in output.partition("== unstable")[2]


def test_a_crash_is_a_failure_of_the_test_that_ran(start: Run) -> None:
    crashes = """
def test_crashes_once(): times("once") > 1 or os._exit(7)
def test_crashes(): os._exit(7)
"""
    code, output, counted = ended(start(crashes, workers=2))
    assert (code, counted) == (1, "1 failed, 1 passed, 1 unstable"), output
    assert "crashed while running 'test_toy.py::test_crashes_once'" in output.partition("== unstable")[2]


def test_many_failures_are_not_run_again(start: Run) -> None:
    code, output, counted = ended(start(UNSTABLE.format(names=list("abcdefghijk"))))
    assert (code, counted) == (1, "11 failed, 1 passed"), output
    assert "once more" not in output


BREAKS = {
    "collects badly": "def pytest_pycollect_makeitem(): 1 / 0",
    "workers collect badly": "def pytest_pycollect_makeitem(): 1 / 0",
    "exit code 1": "def pytest_sessionfinish(): 1 / 0",
    "exit code 2": "import os\ndef pytest_collection(): os.kill(os.getpid(), 2)",
    "exit code 3": "def pytest_runtest_protocol(): 1 / 0",
    "exit code 4": "there is no such name",
    "exit code 0": "import os\ndef pytest_collection(): os._exit(0)",
}
"""Files `conftest.py`, each of which breaks its part of the tests."""


def test_what_fails_beside_the_tests_always_fails_the_run(start: Run, tmp_path: Path) -> None:
    parts = []
    for name, conftest in BREAKS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "test_broken.py").write_text("def test_broken(): pass\n")
        (tmp_path / name / "conftest.py").write_text(conftest)
        parts.append(f"part '{name}' {2 * ('workers' in name)} '' '{name}'")
    more = "\n".join([*parts, "parts+=(lint=1)"])
    code, output, counted = ended(start(UNSTABLE.format(names=["one"]), more))
    errors = [line for line in output.splitlines() if line.startswith("== error: ")]
    assert (code, counted) == (1, f"2 passed, 1 unstable, {len(errors)} errors"), output
    for name in [*BREAKS, "lint: exit code 1"]:
        assert [line for line in errors if name in line], f"{name} in {output}"


@pytest.mark.parametrize("again", [False, True], ids=["first time", "second time"])
def test_an_interrupted_run_ends_and_counts_nothing(start: Run, tmp_path: Path, again: bool) -> None:
    test = f"""
def test_fails_or_waits():
    assert times("it") > {int(again)}
    times("waits")
    __import__("time").sleep(600)
"""
    run = start(test, workers=0 if again else 2)
    assert eventually((tmp_path / "waits").exists, 60)
    os.killpg(run.pid, signal.SIGINT)
    code, output, counted = ended(run)
    assert (code, counted) == (130, ""), output
    assert ("once more" in output) is again and "unstable" not in output


@pytest.fixture
def repeat(tmp_path: Path, command: Run) -> Run:
    """Starts what `make test-unstable` starts."""

    def repeat(tests: str, *arguments: str) -> subprocess.Popen[str]:
        (tmp_path / "test_toy.py").write_text(TOY + BUSY_LOOPS + tests)
        return command(sys.executable, "-m", "tests.unstable", *arguments)

    return repeat


BUSY_LOOPS = """
def busy_loops():
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(f"\\0{os.getppid()}\\0") in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError: pass
    return found
"""


def test_each_failure_is_counted_by_condition(repeat: Run) -> None:
    tests = """
def test_disturbed(): assert not busy_loops(), "disturbed"
def test_late(): assert times("it") > 1, "late"
"""
    code, output, _ = ended(repeat(tests, "4", "test_toy.py"))
    cores = len(os.sched_getaffinity(0))
    beside = f"beside {cores} busy loop{'s' * (cores > 1)}"
    lines = output.splitlines()
    assert (code, lines[-1]) == (1, f"== 2 tests failed: 2 runs alone, 2 runs {beside}"), output
    at = lines.index("test_toy.py::test_disturbed")
    assert lines[at + 1] == f"    failed 0 of 2 alone, 2 of 2 {beside}"
    assert lines[at + 2].endswith("AssertionError: disturbed")
    assert lines[lines.index("test_toy.py::test_late") + 1] == f"    failed 1 of 2 alone, 0 of 2 {beside}"


def test_without_names_the_tests_that_failed_last_are_repeated(start: Run, repeat: Run) -> None:
    assert ended(start(UNSTABLE.format(names=["one"])))[0] == 0
    code, output, _ = ended(repeat(UNSTABLE.format(names=["one", "two"]), "1"))
    assert (code, output.splitlines()[-1]) == (0, "== 0 tests failed: 1 run alone"), output
    assert "1 passed" in output
    code, output, _ = ended(repeat("", "1", "test_toy.py::test_none"))
    assert code == 2 and "== pytest ended with exit code 4" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_busy_loops_end_with_the_command(repeat: Run, tmp_path: Path, number: signal.Signals) -> None:
    waits = """
def test_waits():
    Path("loops").write_text(" ".join(busy_loops()))
    if busy_loops():
        __import__("time").sleep(600)
"""
    run = repeat(waits, "2", "test_toy.py::test_waits")
    loops = eventually(lambda: (tmp_path / "loops").exists() and (tmp_path / "loops").read_text().split(), 60)
    assert len(loops) == len(os.sched_getaffinity(0))
    os.killpg(run.pid, number)
    ended(run)
    assert eventually(lambda: not [pid for pid in loops if Path("/proc", pid, "exe").exists()])
