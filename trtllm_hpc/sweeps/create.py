"""Create the folder of a sweep from a job file, after checking every variant."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from trtllm_hpc.config.diagnostics import in_job
from trtllm_hpc.errors import ConfigError, Diagnostic, RenderError
from trtllm_hpc.paths import SWEEPS
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.render.run_folder import cannot_write, new_run_folder
from trtllm_hpc.runs.create import JobSource, plan_facts, write_planned
from trtllm_hpc.runs.hub import download, locator, runs_folder
from trtllm_hpc.runs.submit import require_scheduler
from trtllm_hpc.sweeps.record import SweepPaths, SweepRecord, Variant, write_record
from trtllm_hpc.validation.checks import check_submission
from trtllm_hpc.validation.context import SlurmAnswers
from trtllm_hpc.validation.load import load_sweep

_NAMED = 4
"""Most variants that a finding names."""


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep that is not written yet."""

    paths: SweepPaths
    record: SweepRecord
    runs: dict[str, Plan]
    """Plans of the variants that are not refused, by name."""
    findings: tuple[Diagnostic, ...]
    """Errors of refused variants, each with the variants' names."""
    warnings: tuple[str, ...]

    @cached_property
    def jobs(self) -> int:
        """Number of jobs to submit."""
        return 1 if self.record.allocation == "one" else sum(len(plan.stages) for plan in self.runs.values())

    def write(self) -> None:
        """Download the models, write the run folder of each variant, and then the record; all or nothing.

        Raises RenderError or HubFailed.
        """
        for plan in self.runs.values():
            download(plan.job.model, Path(plan.run_folder))
        try:
            for plan in self.runs.values():
                write_planned(plan)
            write_record(self.paths, self.record)
        except BaseException as error:  # including Ctrl-C
            shutil.rmtree(self.paths.folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise cannot_write(self.paths.folder, error) from None
            raise


def plan_sweep(
    source: JobSource,
    options: Sequence[str] = (),
    *,
    ignored_checks: Collection[str] = (),
    skip: bool = False,
) -> PlannedSweep:
    """Check every variant of a job file like ``submit``.

    Args:
        options: ``KEY=A,B,C`` texts, which add to the job file's grid.
        skip: leave out wrong variants, unless all are wrong, instead of refusing the sweep.

    Raises:
        ConfigError: with all errors of files and variants, and the variants' names.
        SubmissionError: this machine cannot submit to the cluster.
    """
    loaded = load_sweep(source.job_file, source.cluster, source.settings, options, locator(source.runs))
    first = next((variant.facts for variant in loaded.variants if variant.facts is not None), None)
    runs = source.runs or (runs_folder(first.cluster) if first is not None else Path())
    name = first.job.name.partition(f".{loaded.variants[0].override.name}")[0] if first is not None else ""
    paths = SweepPaths(new_run_folder(runs / SWEEPS, name).folder)
    variants, planned = list[Variant](), dict[str, Plan]()
    wrong: dict[str, Sequence[Diagnostic]] = {}
    warnings: dict[str, None] = {}
    slurm: SlurmAnswers | None = None
    for variant in loaded.variants:
        variant_name = variant.override.name
        try:
            if variant.facts is None or variant.diagnostics:
                raise ConfigError(variant.diagnostics)
            plan = plan_facts(variant.facts, paths.run(variant_name), runs)
            if slurm is None:
                require_scheduler(plan.cluster)
                slurm = SlurmAnswers(*plan.cluster.controller)
            if broken := list(_sweep_rules(plan, in_one=loaded.sweep.allocation == "one")):
                raise ConfigError(broken)
            warnings |= dict.fromkeys(check_submission(plan, ignored_checks, slurm))
            warnings |= dict.fromkeys(f"note: {note}" for note in plan.notes)
            planned[variant_name] = plan
        except ConfigError as error:
            wrong[variant_name] = error.diagnostics
        except RenderError as error:
            wrong[variant_name] = [Diagnostic("cannot-render", error.message, hint=error.hint)]
        problems = wrong.get(variant_name, ())
        refused = tuple(": ".join(filter(None, (problem.field, problem.message))) for problem in problems)
        variants.append(Variant(variant_name, variant.override.values, refused))
    # Show each finding once, with its variants.
    having: dict[str, tuple[Diagnostic, list[str]]] = {}
    for variant_name, diagnostics in wrong.items():
        for diagnostic in diagnostics:
            having.setdefault(str(diagnostic), (diagnostic, []))[1].append(variant_name)
    findings = []
    for diagnostic, names in having.values():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        every = len(names) == len(loaded.variants)
        which = f"all {len(names)} variants" if every else f"{', '.join(names[:_NAMED])}{more}"
        findings.append(replace(diagnostic, message=f"{diagnostic.message} (in {which})"))
    if wrong and (not skip or not planned):
        hint = "fix them, or add --skip-refused to leave out the wrong variants"
        raise ConfigError(findings, hint=hint if planned else None)
    sweep = loaded.sweep
    of_all = (sweep.allocation, sweep.max_running, sweep.time_limit_minutes)
    record = SweepRecord(name, source.cluster, loaded.keys, variants, *of_all)
    return PlannedSweep(paths, record, planned, tuple(findings), tuple(warnings))


def _sweep_rules(plan: Plan, *, in_one: bool) -> Iterator[Diagnostic]:
    """Refuse a variant that does not end by itself, or that needs a heterogeneous job in a single job."""
    if not plan.job.stops_server:
        field = "serve.keep_running" if plan.job.companion.enabled else "companion.enabled"
        message = "the server would run until its time limit, and the next variant would wait"
        yield in_job("never-ends", field, message, "remove it, so that the companion stops the server")
    if in_one and any(len(stage.components) > 1 for stage in plan.stages):
        message = "needs a heterogeneous job, which sweep.allocation: one does not support"
        yield in_job("heterogeneous", "serve.disaggregated", message, "--set sweep.allocation=each")
