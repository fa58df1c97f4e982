"""``trtllm-hpc`` as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from trtllm_hpc.errors import ExitCode

LIMIT_S = 900.0
"""Of each command: a first start builds an engine."""

MEASURED = (ExitCode.OK, ExitCode.MEASUREMENT)
"""Exit codes of `bench` with figures, valid or not."""


class CommandFailed(Exception):
    """A command that was to succeed did not; the message has the end of what it printed."""


def run(*words: object, accept: Sequence[int] = (0,), limit_s: float = LIMIT_S) -> str:
    """Run one command to its end and return its standard output.

    Args:
        words: the command line after ``trtllm-hpc``.
        accept: exit codes that count as success.

    Raises:
        CommandFailed: it ended with another exit code, or not in time.
    """
    line = f"trtllm-hpc {' '.join(map(str, words))}"
    try:
        done = subprocess.run(_command(words), capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"`{line}` did not end within {limit_s:g} s") from error
    if done.returncode not in accept:
        end = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise CommandFailed(f"`{line}` ended with exit code {done.returncode}: {end}")
    return done.stdout


def answer(*words: object, accept: Sequence[int] = (0,)) -> dict[str, Any]:
    """Run one command with ``--json`` and return what it prints; raises as :func:`run`."""
    found: dict[str, Any] = json.loads(run(*words, "--json", accept=accept))
    return found


@contextmanager
def beside(*words: object) -> Iterator[None]:
    """Run one command in the background, interrupted at the end as by Ctrl-C."""
    with subprocess.Popen(_command(words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


def bench(*words: object) -> dict[str, Any]:
    """Measure and return the summary, with or without valid figures; raises as :func:`run`."""
    return answer("bench", *words, "--no-report", accept=MEASURED)


def _command(words: Sequence[object]) -> list[str]:
    return [sys.executable, "-m", "trtllm_hpc", *map(str, words)]
