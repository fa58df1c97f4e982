"""The files between ``doctor --on-nodes`` and its job: what to look at, and what was found."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.node import task_number
from trtllm_hpc.runtime.node_checks import PARTS
from trtllm_hpc.runtime.records import JsonRecord


@dataclass(frozen=True)
class Wanted(JsonRecord):
    """What to look at; written beside the scripts."""

    release: str | None = None
    """TensorRT-LLM that the plan is for; ``None``: newer than all that are known, or none at all."""
    has_tensorrt_llm: bool = True
    """``False`` for the reference backend."""
    programs: list[list[str]] = field(default_factory=list)
    """Command lines of programs in the image, as rendered; the first words name the program."""
    launcher: str | None = None
    """The program that joins the ranks of the LLM API; it has no ``--help``."""
    serve: dict[str, list[str]] = field(default_factory=dict)
    """Words after ``trtllm-serve``, by phase; ``serve`` outside disaggregated serving."""
    front: list[str] = field(default_factory=list)
    """Words after ``trtllm-serve`` for the front of a disaggregated run; empty: there is none."""
    model_yaml: str | None = None
    """Text of ``model.yaml``, with the arguments of the LLM API as a model of Triton."""
    gpus_per_node: int = 0
    ranks: int = 2
    """Tasks of the ranks' step."""
    nodes: int = 1
    tries_network: bool = False
    """Whether the job has tried the network between its nodes."""
    network_interface: str | None = None
    haproxy: str | None = None
    """``None``: the run has no proxy."""
    mpi: str | None = None
    """The plugin of ``srun --mpi``; ``None`` without Slurm's."""


@dataclass(frozen=True)
class PartFindings(JsonRecord):
    """What one task of one part has found."""

    part: str
    task: int
    host: str
    findings: list[dict[str, Any]] = field(default_factory=list)
    """Diagnostics as JSON; ``code`` is the check's id."""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """The findings, as they were made."""
        return [
            Diagnostic(one["code"], one["message"], hint=one["hint"], state=one["state"])
            for one in self.findings
        ]


Findings: TypeAlias = tuple[dict[str, Diagnostic | None], dict[str, Any]]
"""What a part of the checks has found, by the check's id (``None``: it does not apply), and facts."""


def write_found(
    paths: RunPaths, part: str, found: Mapping[str, Diagnostic | None], facts: dict[str, Any]
) -> None:
    """Write what this task has found, as :data:`Findings` has it."""
    findings = [replace(it, code=code).as_json() for code, it in found.items() if it is not None]
    paths.node_findings.mkdir(exist_ok=True)
    task = task_number()
    record = PartFindings(part, task, socket.gethostname(), findings, facts)
    record.write(paths.node_findings / f"{part}_{task}.json")


def read_found(paths: RunPaths) -> list[PartFindings]:
    """Return everything that was found so far, in the order of the parts."""
    files = sorted(paths.node_findings.glob("*.json"))
    found = [one for file in files if (one := PartFindings.read(file)) is not None]
    return sorted(found, key=lambda one: (PARTS.index(one.part), one.task))
