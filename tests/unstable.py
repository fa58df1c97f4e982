"""Run chosen tests again and again, every second time beside busy loops, and count how often each fails.

``python -m tests.unstable TIMES [TEST...]``: a test is a file, a folder or a node ID. Without any, the tests
that failed when they were last run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import click

from tests.again import run_pytest

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
CORES = len(os.sched_getaffinity(0))
CONDITIONS = ("alone", f"beside {CORES} busy loop{'s' * (CORES > 1)}")

BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
"""Ends with its parent, however that ends."""


@contextmanager
def busy_loops() -> Iterator[None]:
    """Keep each core busy meanwhile."""
    command = [sys.executable, "-c", BUSY, str(os.getpid())]
    # In a session of their own, so Ctrl-C makes no traceback in each.
    loops = [subprocess.Popen(command, start_new_session=True) for _ in range(CORES)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main(times: int, tests: list[str]) -> int:
    """Run the tests so many times, and print how often each failed. Returns the exit code."""
    if not tests and LAST_FAILED.exists():
        tests = list(json.loads(LAST_FAILED.read_text(encoding="utf-8")))
    if not tests:
        click.echo("error: no test failed last time. Type: make test-unstable TESTS='tests/FILE.py::TEST'")
        return 2
    runs: Counter[str] = Counter()
    failures: dict[str, Counter[str]] = {}
    lines: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        for number in range(times):
            condition = CONDITIONS[number % 2]
            click.echo(f"== run {number + 1} of {times}, {condition}")
            with busy_loops() if number % 2 else nullcontext():
                code, outcome = run_pytest(Path(folder, "outcome"), *tests)
            if code in (2, 3, 4, 5):  # interrupted, as by an error of collection; used wrongly; no such test
                click.secho(f"== pytest ended with exit code {code}", fg="red")
                return 2
            failed = outcome.failed if outcome else {"pytest itself": f"ended with exit code {code}"}
            runs[condition] += 1
            for test, line in failed.items():
                failures.setdefault(test, Counter())[condition] += 1
                lines.setdefault(test, line)
    for test, counts in failures.items():
        often = ", ".join(f"{counts[each]} of {runs[each]} {each}" for each in CONDITIONS)
        click.secho(f"{test}\n    failed {often}\n    {lines[test]}", fg="red")
    done = ", ".join(f"{runs[each]} run{'s' * (runs[each] > 1)} {each}" for each in CONDITIONS if runs[each])
    click.echo(f"== {len(failures)} test{'s' * (len(failures) != 1)} failed: {done or 'no run ended'}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
