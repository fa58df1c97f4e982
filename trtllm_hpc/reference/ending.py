"""How a rank's server ends: in order, or at once when it cannot do its part any more.

This code runs in the stub process of the ``tensorrt_llm`` model, a child of
its rank's Triton server.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from trtllm_hpc.paths import write_text
from trtllm_hpc.reference import watchdog
from trtllm_hpc.reference.world import World

SERVER_START_S = 30.0
"""Bound for a server to begin to listen to signals once its models are loaded."""

_log = logging.getLogger(__name__)


class Ending:
    """Sees to it that this rank's server does not outlive its model.

    Triton goes on answering, and calls itself ready, when the process of a
    model is killed; so a watchdog ends the server then.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._watchdog = _start_watchdog(world)

    @contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Pass every error on to Triton, which ends the server, and leave a sentence for the supervisor."""
        try:
            yield
        except Exception as error:  # passed on below, whatever it is; only a sentence is left behind
            self._report(f"Rank {self._world.rank} did not start: {first_sentence(error)}")
            self.release()
            raise

    def release(self) -> None:
        """Let this process end without its server being killed."""
        pipe = self._watchdog.stdin
        assert pipe is not None
        if not pipe.closed:
            # A watchdog that is gone needs no word any more.
            with suppress(BrokenPipeError), pipe:
                pipe.write(watchdog.RELEASE)
            self._watchdog.wait()

    def die(self, sentence: str) -> NoReturn:
        """End this rank for good: a server that lost a rank must not go on answering.

        The server is killed and not asked: a polite end waits for requests
        that nobody will finish.
        """
        self._report(sentence)
        self.release()
        _signal_server(signal.SIGKILL)
        os._exit(1)

    def _report(self, sentence: str) -> None:
        _log.error("%s", sentence)
        if self._world.failure_file is not None:
            # On a full disk the server must end all the same.
            with suppress(OSError):
                write_text(self._world.failure_file, sentence + "\n")


def stop_server_when_started() -> None:
    """End the Triton server with exit code 0, from a thread, soon after the model's ``initialize`` returns.

    While a server loads its models SIGTERM would kill it; only afterwards it
    catches the signal and ends in order.
    """

    def stop() -> None:
        deadline = time.monotonic() + SERVER_START_S
        while not _catches(os.getppid(), signal.SIGTERM) and time.monotonic() < deadline:
            time.sleep(0.05)
        _signal_server(signal.SIGTERM)

    threading.Thread(target=stop, name="stop-server", daemon=True).start()


def first_sentence(error: BaseException) -> str:
    """The first sentence of an error's text without gloo's source position, or the name of its class."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[[^\]]*:\d+\] ", "", lines[0]).split(". ")[0].rstrip(".") + "."


def _start_watchdog(world: World) -> subprocess.Popen[bytes]:
    # sys.executable names the stub here; the stub itself runs the first python3 on PATH.
    python = shutil.which("python3") or "python3"
    sentence = f"The model's process of rank {world.rank} was killed or crashed."
    arguments = [str(os.getppid()), sentence, str(world.failure_file or "")]
    return subprocess.Popen([python, "-I", watchdog.__file__, *arguments], stdin=subprocess.PIPE)


def _signal_server(number: signal.Signals) -> None:
    """Send a signal to the Triton server whose child this process is, if it is one."""
    watchdog.signal_server(os.getppid(), number)


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for a signal (``SigCgt`` in proc(5))."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << (number - 1))
