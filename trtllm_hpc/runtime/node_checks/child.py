"""Work that may abort its process: importing TensorRT-LLM initialises MPI, which may end the process.

A child does it, and writes a line of JSON after each step. So the parent knows how far the child came.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.process import start_bound

LIMIT_S = 180.0
"""Importing TensorRT-LLM from a cold file system takes a minute."""
_OUTPUT = "TRTLLM_HPC_CHILD_OUTPUT"
_LOG_LINES = 6


@dataclass(frozen=True)
class ChildReport:
    """How far a child came."""

    steps: dict[str, Any]
    """The result of each step that it finished, by name."""
    ended: str | None
    """How it ended before its last step, in words; ``None``: it did all of them."""
    log: str
    """The last lines that it printed."""

    def why(self, step: str) -> str:
        """Return why a step has no result."""
        said = self.log.strip().splitlines()
        last = f": {said[-1].strip()}" if said else ""
        return f"{step} {self.ended or 'was not tried'}{last}"


def run_child(
    paths: RunPaths, part: str, environment: Mapping[str, str] | None = None, limit_s: float = LIMIT_S
) -> ChildReport:
    """Run a part's work in a child of its own, by default with this process's environment."""
    program = [sys.executable, sys.argv[0], f"--run={paths.folder}", "node-check", part, "--child"]
    with tempfile.TemporaryDirectory() as folder:
        output, log = Path(folder) / "steps", Path(folder) / "log"
        with log.open("wb") as sink:
            extended = {**(os.environ if environment is None else environment), _OUTPUT: str(output)}
            child = start_bound(program, extended, sink.fileno(), session=True)
            ended: str | None
            try:
                code = child.wait(limit_s)
                ended = None if code == 0 else _ended(code)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                ended = f"did not end within {limit_s:.0f} s"
        text = log.read_text(encoding="utf-8", errors="replace")
        sys.stdout.write(text)
        sys.stdout.flush()
        lines = output.read_text(encoding="utf-8").splitlines() if output.exists() else []
    steps = dict(json.loads(line) for line in lines)
    return ChildReport(steps, ended, "\n".join(text.splitlines()[-_LOG_LINES:]))


def _ended(code: int) -> str:
    return f"ended with signal {-code}" if code < 0 else f"ended with exit code {code}"


def record(step: str, result: Any) -> None:
    """In the child: note the result of a step."""
    with Path(os.environ[_OUTPUT]).open("a", encoding="utf-8") as file:
        file.write(json.dumps([step, result]) + "\n")


def attempt(step: str, work: Callable[[], Any]) -> Any:
    """In the child: do a step and note its result; an exception is noted as ``{"error": ...}``."""
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        result = {"error": f"{type(error).__name__}: {error}"[:2000]}
    record(step, result)
    return result


def error_of(result: Any) -> str | None:
    """Return the error that a step's result stands for."""
    return result["error"] if isinstance(result, dict) and set(result) == {"error"} else None
