"""What tests of loads see from outside: requests in flight, and the end by Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from trtllm_hpc.bench.load.messages import LoadReply


def outstanding(replies: Sequence[LoadReply]) -> list[int]:
    """How many requests are in flight after each send and each end."""
    events = sorted([(reply.sent_s, 1) for reply in replies] + [(reply.ended_s, -1) for reply in replies])
    open_, found = 0, []
    for _, change in events:
        open_ += change
        found.append(open_)
    return found


def interrupted(script: str, *arguments: str) -> tuple[str, float]:
    """Press Ctrl-C after two answers: what the script prints then, and the seconds until it has ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["answer\n"] * 2
    time.sleep(0.2)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=10)
    assert (errors, process.returncode) == ("", 0)
    return out, time.monotonic() - began
