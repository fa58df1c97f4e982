"""What ``nvidia-smi`` says of the GPUs that this process may use."""

from __future__ import annotations

import os
import shutil
import subprocess

_TIMEOUT_S = 30


def ask_gpus(*fields: str) -> list[str]:
    """One line for each GPU with these fields, comma-separated; empty where there is no answer.

    Args:
        fields: as ``nvidia-smi --help-query-gpu`` lists them.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    only = [f"--id={chosen}"] if chosen else []
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader", *only]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in answer.stdout.splitlines()] if answer.returncode == 0 else []
