"""What each command prints with ``--json``: its type, from which the schema is made, and an example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.schemas import examples
from tests.schemas.generator import schema_of
from trtllm_hpc.bench.analysis.compare import Comparison
from trtllm_hpc.bench.results import Measurement
from trtllm_hpc.cli.bench_list import MeasurementRow
from trtllm_hpc.cli.client_run import PromptRecord
from trtllm_hpc.cli.engines import PrunedEngines, VerifiedEngines
from trtllm_hpc.cli.metrics import MetricsSample
from trtllm_hpc.cli.render import RenderedRun
from trtllm_hpc.cli.submitted import SubmittedRun
from trtllm_hpc.cli.templates import TemplatesRow
from trtllm_hpc.client.functional_check import CheckedAnswer
from trtllm_hpc.engine_cache.listing import EngineDetails, EngineRow
from trtllm_hpc.engines.migration import Migrated
from trtllm_hpc.logs.causes.explain import Finding
from trtllm_hpc.report.endpoint import EndpointAccess
from trtllm_hpc.report.log_table import LogRow
from trtllm_hpc.report.versions import ProgramDetails, ReleaseDetails, ReleaseRow
from trtllm_hpc.runs.listing import ListedRun
from trtllm_hpc.runs.prune import PrunedRuns
from trtllm_hpc.runs.shipped_jobs import ShippedJob, ShippedText
from trtllm_hpc.runs.status import RunStatus
from trtllm_hpc.sandbox.cluster import Status
from trtllm_hpc.tensorrt_llm.releases.learned import LearnedRelease
from trtllm_hpc.validation.checks import DoctorReport


@dataclass(frozen=True)
class Output:
    """What a command prints in one of its forms."""

    kind: Any
    """The type that it serialises."""
    example: Any
    """A value of that type."""
    form: str = ""
    """The form, if there are several, e.g. ``with `--wait` ``."""


OUTPUTS: Mapping[str, tuple[Output, ...]] = {
    "jobs list": (Output(list[ShippedJob], [examples.JOB]),),
    "jobs show": (Output(ShippedText, examples.JOB_TEXT),),
    "migrate": (Output(Migrated, examples.MIGRATED),),
    "render": (Output(RenderedRun, examples.RENDERED),),
    "doctor": (Output(DoctorReport, examples.DOCTOR),),
    "runs": (Output(list[ListedRun], [examples.LISTED]),),
    "runs prune": (Output(PrunedRuns, examples.PRUNED_RUNS),),
    "status": (Output(RunStatus, examples.STATUS),),
    "submit": (
        Output(SubmittedRun, examples.SUBMITTED, "without `--wait`"),
        Output(RunStatus, examples.STATUS, "with `--wait`"),
    ),
    "watch": (Output(RunStatus, examples.STATUS),),
    "cancel": (Output(RunStatus, examples.STATUS),),
    "resume": (
        Output(SubmittedRun, examples.SUBMITTED, "without `--wait`"),
        Output(RunStatus, examples.STATUS, "with `--wait`"),
    ),
    "logs": (Output(list[LogRow], [examples.LOG]),),
    "explain": (Output(list[Finding], [examples.FINDING]),),
    "client": (
        Output(PromptRecord, examples.PROMPT),
        Output(CheckedAnswer, examples.CHECKED_ANSWER, "with `--check`"),
    ),
    "bench show": (Output(Measurement, examples.MEASUREMENT),),
    "bench run": (Output(Measurement, examples.MEASUREMENT),),
    "bench list": (Output(list[MeasurementRow], [examples.MEASUREMENT_ROW]),),
    "bench compare": (Output(Comparison, examples.COMPARISON),),
    "endpoint": (Output(EndpointAccess, examples.ACCESS),),
    "metrics": (Output(MetricsSample, examples.METRICS),),
    "engines list": (Output(list[EngineRow], [examples.ENGINE]),),
    "engines show": (Output(EngineDetails, examples.ENGINE_DETAILS),),
    "engines verify": (Output(VerifiedEngines, examples.VERIFIED),),
    "engines prune": (Output(PrunedEngines, examples.PRUNED),),
    "templates list": (Output(list[TemplatesRow], [examples.TEMPLATES]),),
    "templates fetch": (Output(TemplatesRow, examples.TEMPLATES),),
    "templates show": (Output(dict[str, str], examples.CONFIGS),),
    "versions": (Output(list[ReleaseRow], [examples.RELEASE]),),
    "versions show": (
        Output(ReleaseDetails, examples.RELEASE_DETAILS, "of a release"),
        Output(ProgramDetails, examples.PROGRAM, "of a program of it"),
    ),
    "versions learn": (Output(LearnedRelease, examples.LEARNED),),
    "sandbox status": (Output(Status, examples.SANDBOX),),
    "sandbox up": (Output(Status, examples.SANDBOX),),
    "sandbox down": (Output(Status, examples.SANDBOX),),
}
"""By the command's words, in the order of the document."""


def output_schema(command: str) -> dict[str, Any]:
    """The schema of everything that a command prints with ``--json``."""
    kinds = [output.kind for output in OUTPUTS[command]]
    union = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return schema_of(union, "serialization", f"trtllm-hpc {command} --json")
