"""A build that is suspended before one of the things it does to files; a script for a bare Python.

    suspended_build.py RUNTIME FOLDER PATTERN NUMBER

Runs ``RUNTIME engine``. From the making of its lock in FOLDER on, whatever it does there is looked at, as
``event path...``. Before the NUMBERth that PATTERN matches it stops as a whole, as on a node that
hangs, until somebody sends SIGCONT. The lock's own thread is left out: its beats come when they like.
"""

from __future__ import annotations

import os
import re
import runpy
import signal
import sys
import threading
from typing import Any

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir")
"""Audit events (https://docs.python.org/3/library/audit_events.html) whose first argument is a path."""


def main() -> None:
    """See above."""
    runtime, folder, pattern, number = sys.argv[1:]
    locked = False
    found = 0

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal locked, found
        if event not in EVENTS or threading.current_thread().name == "lock":
            return
        action = " ".join([event, *(os.fsdecode(it) for it in arguments if isinstance(it, (str, bytes)))])
        if f"{event} {folder}/" not in f"{action}/":
            return
        found += locked and re.search(pattern, action) is not None
        locked = locked or f"{folder}/.building." in action
        if found == int(number):
            found += 1
            print(f"suspended before {action}", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

    sys.addaudithook(look)
    sys.argv = [runtime, "engine"]
    runpy.run_path(runtime, run_name="__main__")


if __name__ == "__main__":
    main()
