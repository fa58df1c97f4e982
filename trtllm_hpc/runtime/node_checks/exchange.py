"""The files between ``doctor --on-nodes`` and its job: what to check, and the findings.

Importing TensorRT-LLM initialises MPI, which may end the process. So a child process does that, and writes a
line of JSON after each step, from which the parent sees how far the child came.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.node import task_number
from trtllm_hpc.runtime.node_checks import PARTS
from trtllm_hpc.runtime.process import start_bound
from trtllm_hpc.runtime.records import JsonRecord

LIMIT_S = 180.0
"""Limit on a child in seconds; importing TensorRT-LLM from a cold file system takes a minute."""
_OUTPUT = "TRTLLM_HPC_CHILD_OUTPUT"
_LOG_LINES = 6
UNATTENDED_VARIABLE = "TRTLLM_HPC_UNATTENDED_SECONDS"
_UNATTENDED_S = 60.0
"""Seconds that the command may be silent, unless the variable sets another limit; it beats every 5 s."""


@dataclass(frozen=True)
class Wanted(JsonRecord):
    """The checks to make; the command writes them beside the scripts."""

    release: str | None = None
    """Release of TensorRT-LLM that the plan is for; ``None``: newer than all known ones, or not used."""
    has_tensorrt_llm: bool = True
    """``False`` for the reference backend."""
    programs: list[list[str]] = field(default_factory=list)
    """Command lines of programs in the image, as rendered; the first words name the program."""
    launcher: str | None = None
    """Program that joins the ranks of the LLM API; it has no ``--help``."""
    serve: dict[str, list[str]] = field(default_factory=dict)
    """Words after ``trtllm-serve``, by phase; the key is ``serve`` outside disaggregated serving."""
    front: list[str] = field(default_factory=list)
    """Words after ``trtllm-serve`` for the front of a disaggregated run; empty: the run has no front."""
    model_yaml: str | None = None
    """Text of ``model.yaml``, the arguments of the LLM API as a Triton model."""
    gpus_per_node: int = 0
    ranks: int = 2
    """Tasks of the ranks' step."""
    nodes: int = 1
    tries_network: bool = False
    """Whether the job has tested the network between its nodes."""
    network_interface: str | None = None
    haproxy: str | None = None
    """Program of HAProxy; ``None``: the run has no proxy."""
    mpi: str | None = None
    """Plugin of ``srun --mpi``; ``None``: Slurm's MPI is not used."""


@dataclass(frozen=True)
class PartFindings(JsonRecord):
    """The findings of one task of one part."""

    part: str
    task: int
    host: str
    findings: list[dict[str, Any]] = field(default_factory=list)
    """Diagnostics as JSON; ``code`` is the check's ID."""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """The findings as diagnostics."""
        return [
            Diagnostic(finding["code"], finding["message"], hint=finding["hint"], state=finding["state"])
            for finding in self.findings
        ]


Findings: TypeAlias = tuple[dict[str, Diagnostic | None], dict[str, Any]]
"""The findings of a part by the check's ID (``None``: the check does not apply), and facts."""


def write_found(
    paths: RunPaths, part: str, found: Mapping[str, Diagnostic | None], facts: dict[str, Any]
) -> None:
    """Write this task's :data:`Findings`."""
    findings = [
        replace(finding, code=code).as_json() for code, finding in found.items() if finding is not None
    ]
    paths.node_findings.mkdir(exist_ok=True)
    task = task_number()
    record = PartFindings(part, task, socket.gethostname(), findings, facts)
    record.write(paths.node_findings / f"{part}_{task}.json")


def read_found(paths: RunPaths) -> list[PartFindings]:
    """Return all findings so far, in the order of the parts."""
    files = sorted(paths.node_findings.glob("*.json"))
    records = [findings for file in files if (findings := PartFindings.read(file)) is not None]
    return sorted(records, key=lambda findings: (PARTS.index(findings.part), findings.task))


def wait_until_unattended(paths: RunPaths) -> None:
    """Return once the command that waits for this job has not touched its heartbeat file for a while.

    Only changes of the file count, timed by this node's clock, because the clocks of two machines may differ.
    """
    limit_s = float(os.environ.get(UNATTENDED_VARIABLE) or _UNATTENDED_S)
    last, changed_at = None, time.monotonic()
    while time.monotonic() - changed_at < limit_s:
        try:
            now = paths.heartbeat.stat().st_mtime_ns
        except FileNotFoundError:
            now = None
        if now != last:
            last, changed_at = now, time.monotonic()
        time.sleep(1)


# Work that may abort its process ---------------------------------------------------------


@dataclass(frozen=True)
class ChildReport:
    """The progress of a child process."""

    steps: dict[str, Any]
    """Result of each finished step, by name."""
    ended: str | None
    """Description of the child's early end, in words; ``None`` if it finished all steps."""
    log: str
    """The last lines that the child printed."""

    def why(self, step: str) -> str:
        """Return why a step has no result."""
        lines = self.log.strip().splitlines()
        last = f": {lines[-1].strip()}" if lines else ""
        return f"{step} {self.ended or 'was not tried'}{last}"


def run_child(
    paths: RunPaths, part: str, environment: Mapping[str, str] | None = None, limit_s: float = LIMIT_S
) -> ChildReport:
    """Run a part's work in a child process, by default with this process's environment."""
    program = [sys.executable, sys.argv[0], f"--run={paths.folder}", "node-check", part, "--child"]
    with tempfile.TemporaryDirectory() as folder:
        output, log = Path(folder) / "steps", Path(folder) / "log"
        with log.open("wb") as sink:
            extended = {**(os.environ if environment is None else environment), _OUTPUT: str(output)}
            child = start_bound(program, extended, sink.fileno(), session=True)
            ended: str | None
            try:
                code = child.wait(limit_s)
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                ended = None if code == 0 else f"ended with {how}"
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


def record(step: str, result: Any) -> None:
    """In the child: record the result of a step."""
    with Path(os.environ[_OUTPUT]).open("a", encoding="utf-8") as file:
        file.write(json.dumps([step, result]) + "\n")


def attempt(step: str, work: Callable[[], Any]) -> Any:
    """In the child: do a step and record its result; an exception becomes ``{"error": ...}``."""
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - any exception is a finding
        result = {"error": f"{type(error).__name__}: {error}"[:2000]}
    record(step, result)
    return result


def error_of(result: Any) -> str | None:
    """Return the error in a step's result, if the step failed."""
    return result["error"] if isinstance(result, dict) and set(result) == {"error"} else None
