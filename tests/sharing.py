"""What the workers of one run of pytest share, so that each thing is made once."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

RUN = "TRTLLM_HPC_TEST_RUN"
"""Environment variable that names this run of pytest; workers inherit it."""

SANDBOXES = Path("/run/trtllm-hpc")


def run() -> str:
    """The process ID of the pytest that started the workers."""
    return os.environ[RUN]


def processes() -> dict[int, str]:
    """The command lines of the processes that were started in this run of pytest, with the tests that did."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            variables = (folder / "environ").read_bytes().split(b"\0")
            if f"{RUN}={run()}".encode() in variables:
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                if b"multiprocessing.resource_tracker" in words:
                    continue  # Python's own, which ends with the process that asked for it
                test = next((it for it in variables if it.startswith(b"PYTEST_CURRENT_TEST=")), b"")
                found[int(folder.name)] = (words + test).decode(errors="replace")
    return found


def sandbox_name(kind: str) -> str:
    """The name of a sandbox that only this worker uses."""
    return f"{kind}-{run()}-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"


def folder() -> Path:
    """A folder that all workers, ordinary users and the sandboxes' nodes see."""
    return Path(f"/tmp/trtllm-hpc-test-run-{run()}")


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Have the first worker make a folder; the others wait and use it as it is."""
    folder().mkdir(mode=0o755, exist_ok=True)
    made = folder() / name
    with folder().joinpath(f"{name}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            try:
                make(made)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
    return made


def engine_for(ranks: int) -> Path:
    """A finished engine of the reference backend, so that not every test builds one.

    It has no model: what a test of a run's life needs is that ranks start and end, and not the seconds
    in which each imports PyTorch. The tests that build their own engine have a model.
    """
    return made_once(f"engine tp{ranks}", partial(build_engine, ranks=ranks))


def build_engine(folder: Path, ranks: int, synthetic: str = "stand-in") -> None:
    command = [sys.executable, "-m", "trtllm_hpc.reference.build", "--output", str(folder)]
    command += ["--synthetic", synthetic, "--tensor-parallel", str(ranks)]
    options = ["--seed", "0", "--dtype", "float32", "--max-batch-size", "8"]
    lengths = ["--max-input-len", "256", "--max-seq-len", "512"]
    subprocess.run([*command, *options, *lengths], check=True, capture_output=True)
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
