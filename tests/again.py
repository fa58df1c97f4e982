"""Tell a race from a fault: what failed in a run of the tests is run once more, by itself.

As a plugin (``pytest -p tests.again --outcome FILE``) this module records how a run's tests ended. As a
program (``python -m tests.again FOLDER SECONDS PART=EXIT_CODE...``) it reads the outcomes of a run's parts,
runs what failed once more, and prints how the whole run ended. Only a failed test gets a second chance: an
error of collection, an interrupted part, or a crash of pytest itself fails the run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import pytest

MOST_UNSTABLE = 3
"""A run with more unstable tests fails."""
MOST_AGAIN = 10
"""If more tests fail, chance is not the reason: none is run again, and the run ends soon."""


@dataclass
class Outcome:
    """How the tests of one run of pytest ended."""

    counts: dict[str, int] = field(default_factory=dict)
    """Tests that did not fail, by pytest's word for them: ``passed``, ``skipped``, ``xfailed``."""
    failed: dict[str, str] = field(default_factory=dict)
    """Failed tests by node ID, each with the line of its first failure."""
    errors: list[str] = field(default_factory=list)
    """Files that could not be collected, each with the reason."""

    @classmethod
    def read(cls, file: Path) -> Outcome | None:
        """What a run has recorded; ``None`` if it ended without a record."""
        return cls(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcome", type=Path, metavar="FILE", help="record how the tests ended, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that has the reports of all workers."""
    if config.getoption("outcome") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config))


class Recorder:
    """Collects the outcome of a run of pytest, and writes it at the run's end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.words: dict[str, str] = {}
        self.outcome = Outcome()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        error = f"{report.nodeid}: {first_line(report)}" if report.failed else ""
        if error and error not in self.outcome.errors:  # each worker collects
            self.outcome.errors.append(error)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test's failure in any of its phases, or the crash of its worker."""
        if report.failed:
            self.outcome.failed.setdefault(report.nodeid, first_line(report))
        elif word := self.config.hook.pytest_report_teststatus(report=report, config=self.config)[0]:
            self.words[report.nodeid] = word

    def pytest_sessionfinish(self) -> None:
        others = (word for test, word in self.words.items() if test not in self.outcome.failed)
        self.outcome.counts = dict(Counter(others))
        text = json.dumps(asdict(self.outcome))
        self.config.getoption("outcome").write_text(text, encoding="utf-8")


def first_line(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Where something failed, and the first line of the reason."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return next((line for line in str(report.longrepr).splitlines() if line.strip()), "no reason given")
    path = Path(crash.path)
    where = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{where}:{crash.lineno}: {crash.message.partition(chr(10))[0]}"


def run_pytest(outcome: Path, *arguments: str) -> tuple[int, Outcome | None]:
    """Run pytest in one process. Returns its exit code and the outcome."""
    outcome.unlink(missing_ok=True)
    # pytest's cache names what failed in the run before: `make test-unstable` reads it.
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-p", "tests.again", "--outcome", str(outcome)]
    with subprocess.Popen([sys.executable, "-m", "pytest", *options, *arguments]) as running:
        try:
            code = running.wait()
        except KeyboardInterrupt:
            running.wait()  # Ctrl-C ends it, too: it takes down the servers that it has started
            raise
    return code, Outcome.read(outcome)


def passes_by_itself(test: str, folder: Path) -> bool:
    code, outcome = run_pytest(folder / "again", test)
    return code == 0 and outcome is not None and outcome.counts == {"passed": 1}


@dataclass
class Whole:
    """How all parts of a run ended, after what failed was run once more."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    unstable: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, name: str, code: int, outcome: Outcome | None) -> None:
        """Add a part, with its exit code."""
        if outcome is not None:
            self.counts.update(outcome.counts)
            self.failed.update(outcome.failed)
            self.errors += outcome.errors
        # Exit code 1 of pytest: tests have failed. Any other one says more than this.
        if outcome is None or code > 1 or (code == 1 and not outcome.failed and not outcome.errors):
            self.errors.append(f"{name}: exit code {code}")

    def run_failed_again(self, folder: Path) -> None:
        if len(self.failed) > MOST_AGAIN:
            click.echo(f"== {len(self.failed)} tests failed: too many to run them again")
            return
        for test in list(self.failed):
            click.echo(f"== once more, by itself: {test}")
            if passes_by_itself(test, folder):
                self.unstable[test] = self.failed.pop(test)

    def report(self, seconds: int) -> int:
        """Print how the run ended, a line like pytest's last. Returns the exit code."""
        for error in self.errors:
            click.secho(f"== error: {error}", fg="red")
        for title, tests in (
            ("failed", self.failed),
            ("unstable: failed at first, passed by itself", self.unstable),
        ):
            if tests:
                click.secho(f"== {title}", fg="red")
            for test, line in tests.items():
                click.secho(f"{test}\n    {line}", fg="red")
        too_many = len(self.unstable) > MOST_UNSTABLE
        if too_many:
            click.secho(f"== The run fails: more than {MOST_UNSTABLE} tests are unstable", fg="red")
        wrong = bool(self.failed or self.errors or too_many)
        counted = {
            "failed": len(self.failed),
            **self.counts,
            "unstable": len(self.unstable),
            "error" if len(self.errors) == 1 else "errors": len(self.errors),
        }
        ends = ", ".join(f"{number} {word}" for word, number in counted.items() if number) or "no tests ran"
        click.secho(
            f" {ends} in {seconds}s ".center(80, "="), fg="red" if wrong or self.unstable else "green"
        )
        return int(wrong)


def main(folder: Path, seconds: float, parts: list[str]) -> int:
    """Judge the parts, each ``NAME=EXIT_CODE``, of a run that has taken some seconds so far."""
    began = time.monotonic() - seconds
    whole = Whole()
    for part in parts:
        name, _, code = part.rpartition("=")
        whole.add(name, int(code), Outcome.read(folder / name))
    whole.run_failed_again(folder)
    return whole.report(round(time.monotonic() - began))


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
    except KeyboardInterrupt:
        sys.exit(130)
