"""Environments with packages that the tests' own must not have."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from trtllm_hpc.paths import user_cache


def environment(name: str, requirements: Sequence[str]) -> Path:
    """The Python of a virtual environment with these packages, which later runs of the tests use again."""
    folder = user_cache() / "other-clients" / name
    wanted = "\n".join([sys.version, *requirements])
    python, made = folder / "bin" / "python", folder / "made-for.txt"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other runs of the tests use the same folder
        if not made.exists() or made.read_text(encoding="utf-8") != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "-q", *requirements], check=True)
            made.write_text(wanted, encoding="utf-8")
    return python
