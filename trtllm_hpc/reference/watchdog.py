"""Kills a Triton server when the process of its model dies, and that process when the server dies.

Runs as ``python3 watchdog.py SERVER_PID SENTENCE FAILURE_FILE``. The standard input is a pipe from the
model's process, its parent; the kernel closes the pipe however that process ends. A model that waits for
other ranks cannot notice by itself that its server has ended.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

RELEASE = b"release"
"""The bytes that the model's process writes before an orderly end."""

POLL_S = 0.5
"""Seconds between two checks of the server."""


def is_server(pid: int) -> bool:
    """Return whether a process is a running Triton server, by its name and state in proc(5)."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return name.endswith("(tritonserver") and rest.split()[0] != "Z"


def signal_server(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process if it is a running Triton server."""
    if is_server(pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def main() -> None:
    """Wait for the end of the pipe or of the server."""
    # A signal to the whole job must not end the watchdog before the processes that it watches.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    server, sentence, failure_file = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    model = os.getppid()
    while not select.select([sys.stdin], [], [], POLL_S)[0]:
        if not is_server(server):
            os.kill(model, signal.SIGKILL)
            return
    if sys.stdin.buffer.read() == RELEASE or not is_server(server):
        return
    if failure_file:
        Path(failure_file).write_text(sentence + "\n", encoding="utf-8")
    signal_server(server, signal.SIGKILL)


if __name__ == "__main__":
    main()
