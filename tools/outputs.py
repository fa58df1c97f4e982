"""The types that commands print with ``--json``, and their JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any

from tools.type_schemas import DIALECT, schemas_of
from trtllm_hpc.bench.analysis.compare import Comparison
from trtllm_hpc.bench.results import MeasurementSummary
from trtllm_hpc.cli.bench import MeasurementRow
from trtllm_hpc.cli.client_run import PromptRecord
from trtllm_hpc.cli.endpoint import EndpointAccess
from trtllm_hpc.cli.engines import VerifiedEngines
from trtllm_hpc.cli.metrics import MetricsSample
from trtllm_hpc.cli.submit import PreviewedRun, RenderedRun, SubmittedRun
from trtllm_hpc.cli.sweep import CheckedSweep, SweepRow
from trtllm_hpc.engine_cache import EngineRow
from trtllm_hpc.evaluation.scores import EvaluationSummary
from trtllm_hpc.logs.causes.explain import Explanation
from trtllm_hpc.report.log_table import LogRow
from trtllm_hpc.runs.guests import ProxyClient
from trtllm_hpc.runs.hub import ModelRow
from trtllm_hpc.runs.job_files import ShippedJob
from trtllm_hpc.runs.listing import ListedRun
from trtllm_hpc.runs.status import RunStatus
from trtllm_hpc.sandbox.cluster import Status
from trtllm_hpc.sweeps.measured import SweepResults
from trtllm_hpc.sweeps.status import SweepStatus
from trtllm_hpc.tensorrt_llm.releases.programs import Program
from trtllm_hpc.tensorrt_llm.releases.release import Release
from trtllm_hpc.validation.checks import DoctorReport

OUTPUTS: Mapping[str, Mapping[str, Any]] = {
    "jobs list": {"": list[ShippedJob]},
    "render": {"": RenderedRun},
    "doctor": {"": DoctorReport},
    "sweep run": {"": SweepStatus, "with `--check`": CheckedSweep},
    "sweep list": {"": list[SweepRow]},
    "sweep status": {"": SweepStatus},
    "sweep watch": {"": SweepStatus},
    "sweep report": {"": SweepResults},
    "runs": {"": list[ListedRun]},
    "status": {"": RunStatus},
    "submit": {"": SubmittedRun, "with `--wait`": RunStatus, "with `--dry-run`": PreviewedRun},
    "watch": {"": RunStatus},
    "logs": {"": list[LogRow]},
    "explain": {"": Explanation},
    "client": {"": PromptRecord},
    "evaluate": {"": EvaluationSummary},
    "bench list": {"": list[MeasurementRow]},
    "bench show": {"": MeasurementSummary},
    "bench run": {"": MeasurementSummary},
    "bench compare": {"": Comparison},
    "endpoint": {"": EndpointAccess, "with `--invite`, `--revoke` or `--invited`": list[ProxyClient]},
    "metrics": {"": MetricsSample},
    "engines list": {"": list[EngineRow]},
    "engines verify": {"": VerifiedEngines},
    "models list": {"": list[ModelRow]},
    "versions": {"": list[Release]},
    "versions show": {"of a release": Release, "of a program of it": Program},
    "sandbox status": {"": Status},
}
"""Types by command, in the order of the page, and by form if a command prints several forms."""


def output_schema() -> dict[str, Any]:
    """Return the schema of each command's output below ``commands``, and of each type below ``$defs``."""
    commands, types = schemas_of({words: reduce(or_, kinds.values()) for words, kinds in OUTPUTS.items()})
    return {"$schema": DIALECT, "title": "trtllm-hpc COMMAND --json", "commands": commands, "$defs": types}
