"""Ends a rank's server: in order, or at once when this rank cannot go on.

This code runs in the stub process of the ``tensorrt_llm`` model, a child of its rank's Triton server.
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
"""Time limit for a server to install its signal handlers once its models are loaded."""

_log = logging.getLogger(__name__)


class Shutdown:
    """Ends this rank's server with its model.

    Triton goes on answering, and reports that it is ready, when the process
    of a model is killed; so a watchdog kills the server then.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        # sys.executable is the stub here, which itself runs the first python3 on PATH.
        python = shutil.which("python3") or "python3"
        sentence = f"The model's process of rank {world.rank} was killed or crashed."
        arguments = [str(os.getppid()), sentence, str(world.failure_file or "")]
        command = [python, "-I", watchdog.__file__, *arguments]
        self._watchdog = subprocess.Popen(command, stdin=subprocess.PIPE)

    @contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Write the first sentence of any error for the supervisor; the error itself makes Triton end."""
        try:
            yield
        except Exception as error:  # re-raised below, whatever it is
            self._report(f"Rank {self._world.rank} did not start: {first_sentence(error)}")
            self.release()
            raise

    def release(self) -> None:
        """End the watchdog, so that this process can end without its server being killed."""
        pipe = self._watchdog.stdin
        assert pipe is not None
        if not pipe.closed:
            # The watchdog may have ended already.
            with suppress(BrokenPipeError), pipe:
                pipe.write(watchdog.RELEASE)
            self._watchdog.wait()

    def die(self, sentence: str) -> NoReturn:
        """End this process and its server: a server that lost a rank must not go on answering.

        The server gets SIGKILL, since an orderly end would wait for requests that nobody will finish.
        """
        self._report(sentence)
        self.release()
        watchdog.signal_server(os.getppid(), signal.SIGKILL)
        os._exit(1)

    def _report(self, sentence: str) -> None:
        _log.error("%s", sentence)
        if self._world.failure_file is not None:
            # The server must end even if the disk is full.
            with suppress(OSError):
                write_text(self._world.failure_file, sentence + "\n")


def stop_server_when_started() -> None:
    """End the Triton server with exit code 0, from a thread, after the model's ``initialize`` has returned.

    SIGTERM would kill a server that is still loading its models; only afterwards does it handle the signal
    and end in order.
    """

    def stop() -> None:
        deadline = time.monotonic() + SERVER_START_S
        while not _handles_sigterm(os.getppid()) and time.monotonic() < deadline:
            time.sleep(0.05)
        watchdog.signal_server(os.getppid(), signal.SIGTERM)

    threading.Thread(target=stop, name="stop-server", daemon=True).start()


def first_sentence(error: BaseException) -> str:
    """The first sentence of an error, without gloo's source position; its class if it has no text."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[[^\]]*:\d+\] ", "", lines[0]).split(". ")[0].rstrip(".") + "."


def _handles_sigterm(pid: int) -> bool:
    """Whether a process handles the signal (``SigCgt`` in proc(5))."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        return bool(int(status.partition("SigCgt:")[2].split()[0], 16) & 1 << (signal.SIGTERM - 1))
    return False
