"""Kills a Triton server when the process of its model dies.

A process of its own: ``python3 watchdog.py SERVER_PID SENTENCE FAILURE_FILE``.
Its standard input is a pipe from the model's process, which the kernel closes
however that process ends.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

RELEASE = b"release"
"""What the model's process writes when it means to end."""


def signal_server(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process if it is a Triton server (still, or at all)."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
        if name == "tritonserver":
            os.kill(pid, number)
    except (FileNotFoundError, ProcessLookupError):
        return


def main() -> None:
    """Wait for the pipe's end."""
    # A signal to the whole job must not end the watchdog before what it watches.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    server, sentence, failure_file = sys.argv[1:]
    if sys.stdin.buffer.read() == RELEASE:
        return
    if failure_file:
        aside = Path(f"{failure_file}.watchdog")
        aside.write_text(sentence + "\n", encoding="utf-8")
        aside.replace(failure_file)
    signal_server(int(server), signal.SIGKILL)


if __name__ == "__main__":
    main()
