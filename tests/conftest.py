"""For all tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests import sharing
from tests.waiting import eventually

ONE_BY_ONE = ("tests/local/", "tests/slurm/", "tests/reference/test_ranks.py")
"""Where each test, of half a minute, goes to the next free worker."""

TOGETHER = ("tests/local/test_api.py", "tests/local/test_proxy.py")
"""Files below those whose tests share one run."""

SLURM = "tests/slurm/"
"""But for the thorough ones, its tests share one sandbox and so one worker: each looks for what it left."""

SHARED_SERVERS = " ".join(
    f"tests/reference/test_{name}.py"
    for name in (*("bls", "client_options", "contract", "load", "metrics", "token_counts", "upstream"),)
)
"""The files whose tests ask the servers ``alone`` and ``pair``."""


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

# How long an example takes depends on what else the processors do.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# Threads of PyTorch that share a processor with other tests wait for each other most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where there are several all the same, they must not spin while they wait.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.hookimpl(trylast=True)  # after pytest-rerunfailures
def pytest_configure(config: pytest.Config) -> None:
    """Name what the workers of this run of pytest share."""
    if not hasattr(config, "workerinput"):
        os.environ[sharing.RUN] = str(os.getpid())
        return
    # Each test waits 40 ms for pytest-rerunfailures otherwise: it writes twice, and then reads.
    config.failures_db.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)  # before xdist kills the workers
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """After an interrupt of this process alone, have the workers take down what they have started."""
    if exitstatus == pytest.ExitCode.INTERRUPTED and session.config.pluginmanager.has_plugin("dsession"):
        for started in Path("/proc/self/task").glob("*/children"):
            with suppress(FileNotFoundError):  # a thread that has ended
                for pid in started.read_text(encoding="utf-8").split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGINT)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what the workers shared and sandboxes that were left; fail if a process of this run is left."""
    if hasattr(config, "workerinput"):
        return
    if sharing.SANDBOXES.exists():
        from trtllm_hpc.sandbox import Sandbox

        for left in sharing.SANDBOXES.glob(f"*-{sharing.run()}-*"):
            Sandbox(left.name).down()
    shutil.rmtree(sharing.folder(), ignore_errors=True)
    eventually(lambda: not sharing.processes(), 10)
    for pid, command in sharing.processes().items():
        print(f"error: a test has left process {pid}: {command}", file=sys.stderr)
        os.kill(pid, signal.SIGKILL)
        session: Any = config.pluginmanager.get_plugin("session")
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With ``--dist loadgroup``, tests that share something costly go to one worker."""
    return Groups(config, log) if config.getoption("dist") == "loadgroup" else None


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of one file stay together, but for those that start and stop all they need."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith(SLURM) and "not thorough" in self.config.getoption("markexpr"):
            return SLURM
        if file.startswith(ONE_BY_ONE) and file not in TOGETHER:
            return nodeid
        return SHARED_SERVERS if file in SHARED_SERVERS else file

    def schedule(self) -> None:
        """Begin with the groups of most tests, go on with single long tests, and end with small groups.

        So no worker is left with a long test while the others have nothing to do.
        """
        super().schedule()
        for scope in [scope for scope, tests in self.workqueue.items() if len(tests) > 1]:
            self.workqueue.move_to_end(scope)

    def _assign_work_unit(self, node: Any) -> None:
        """Begin with Slurm, which takes longest."""
        if SLURM in self.workqueue:
            self.workqueue.move_to_end(SLURM, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        """Give a worker one test beyond the one that it runs, and no more: another may be free sooner."""
        if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
