"""For all tests."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests import sharing


def interrupt(number: int, frame: object) -> None:
    """Interrupt once: a second signal must not keep the first from taking servers and sandboxes down."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


# A shell ignores Ctrl-C for what it starts in the background, and every child would inherit that: the
# tests that interrupt something would wait for ever. Whoever ends the tests from outside (a time limit)
# wants no Slurm and no server left behind either.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, interrupt)

# Threads of PyTorch that share a processor with other tests wait for each other most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Name what the workers of this run of pytest share."""
    if not hasattr(config, "workerinput"):
        os.environ[sharing.RUN] = str(os.getpid())


@pytest.hookimpl(tryfirst=True)  # before xdist kills the workers
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """After an interrupt of this process alone, have the workers take down what they have started."""
    if exitstatus == pytest.ExitCode.INTERRUPTED and session.config.pluginmanager.has_plugin("dsession"):
        for started in Path("/proc/self/task").glob("*/children"):
            for pid in started.read_text(encoding="utf-8").split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGINT)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what the workers shared, and the sandboxes of workers that did not end in order."""
    if hasattr(config, "workerinput"):
        return
    if sharing.SANDBOXES.exists():
        from trtllm_hpc.sandbox import Sandbox

        for left in sharing.SANDBOXES.glob(f"*-{sharing.run()}-*"):
            Sandbox(left.name).down()
    shutil.rmtree(sharing.folder(), ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With ``--dist loadgroup``, give tests that share a server or an imported library to one worker.

    Tests of the real Slurm, and those that start their own servers, go to the
    next free worker one by one.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None and item.get_closest_marker("single") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
