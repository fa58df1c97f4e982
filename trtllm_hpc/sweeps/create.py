"""From a job file to the folder of a sweep: every variant is checked before the first folder is made."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from trtllm_hpc.config.diagnostics import in_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.path_errors import path_errors
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
from trtllm_hpc.validation.load import LoadedVariant, load_sweep

_NAMED = 4
"""Variants that a finding names."""


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep of which nothing is written yet."""

    paths: SweepPaths
    record: SweepRecord
    runs: dict[str, Plan]
    """The plan of each variant that is not refused."""
    findings: tuple[Diagnostic, ...]
    """What is wrong with variants that are refused; each names them."""
    warnings: tuple[str, ...]

    @cached_property
    def jobs(self) -> int:
        """The number of jobs to be submitted."""
        return 1 if self.record.allocation == "one" else sum(len(plan.stages) for plan in self.runs.values())

    def write(self) -> None:
        """Download the models, write the run folder of each variant, and then the record; all or nothing.

        Raises RenderError, or HubFailed.
        """
        for plan in self.runs.values():
            download(plan.job.model, Path(plan.run_folder))
        try:
            for plan in self.runs.values():
                write_planned(plan)
            write_record(self.paths, self.record)
        except BaseException as error:  # Ctrl-C above all
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
    """Check every variant of a job file as ``submit`` checks a job.

    Args:
        options: ``KEY=A,B,C`` texts, which add to the grid of the job file.
        skip: leave variants out that are wrong, unless all are, instead of refusing the sweep.

    Raises:
        ConfigError: the files are wrong, or variants are; with everything that is wrong, and with which.
        SubmissionError: this machine cannot submit to the cluster.
    """
    loaded = load_sweep(source.job_file, source.cluster, source.settings, options, locator(source.runs))
    first = next((it.facts for it in loaded.variants if it.facts is not None), None)
    runs = source.runs or (runs_folder(first.cluster) if first is not None else Path())
    name = first.job.name.partition(f".{loaded.variants[0].override.name}")[0] if first is not None else ""
    paths = SweepPaths(new_run_folder(runs / SWEEPS, name).folder)
    planner = _Planner(paths, runs, ignored_checks, loaded.sweep.allocation == "one")
    for variant in loaded.variants:
        planner.plan(variant)
    if planner.found and (not skip or not planner.runs):
        hint = "fix them, or leave out the variants that are wrong with --skip-refused"
        raise ConfigError(list(planner.findings(len(loaded.variants))), hint=hint if planner.runs else None)
    variants = [
        Variant(it.override.name, it.override.values, tuple(planner.refused.get(it.override.name, ())))
        for it in loaded.variants
    ]
    record = SweepRecord(
        name,
        source.cluster,
        loaded.keys,
        variants,
        loaded.sweep.allocation,
        loaded.sweep.max_running,
        loaded.sweep.time_limit_minutes,
    )
    findings = tuple(planner.findings(len(variants)))
    return PlannedSweep(paths, record, planner.runs, findings, tuple(planner.warnings))


class _Planner:
    def __init__(self, paths: SweepPaths, runs: Path, ignored: Collection[str], in_one: bool) -> None:
        self._paths, self._runs, self._ignored, self._in_one = paths, runs, ignored, in_one
        self._slurm: SlurmAnswers | None = None
        self.runs: dict[str, Plan] = {}
        self.found: dict[str, tuple[Diagnostic, list[str]]] = {}
        self.refused: dict[str, list[str]] = {}
        self.warnings: dict[str, None] = {}

    def plan(self, variant: LoadedVariant) -> None:
        name, wrong = variant.override.name, variant.diagnostics
        if variant.facts is not None and not wrong:
            wrong = list(_sweep_rules(variant.facts.job))
        if wrong or variant.facts is None:
            self._refuse(name, wrong)
            return
        try:
            with path_errors(variant.facts.job, variant.facts.cluster):
                plan = plan_facts(variant.facts, self._paths.run(name), self._runs)
                self.warnings |= dict.fromkeys(self._check(plan))
                if self._in_one and (found := list(_in_one_rules(plan))):
                    raise ConfigError(found)
                self.runs[name] = plan
        except ConfigError as error:
            self._refuse(name, error.diagnostics)
        except RenderError as error:
            self._refuse(name, [Diagnostic("cannot-render", error.message, hint=error.hint)])

    def _check(self, plan: Plan) -> Iterator[str]:
        if self._slurm is None:
            require_scheduler(plan.cluster)
            self._slurm = SlurmAnswers(plan.cluster.slurm_conf)
        warnings = check_submission(plan, self._ignored, self._slurm)
        return chain(warnings, (f"note: {note}" for note in plan.notes))

    def _refuse(self, name: str, wrong: Sequence[Diagnostic]) -> None:
        self.refused[name] = [": ".join(filter(None, (it.field, it.message))) for it in wrong]
        for it in wrong:
            self.found.setdefault(str(it), (it, []))[1].append(name)

    def findings(self, count: int) -> Iterator[Diagnostic]:
        """Yield what is wrong, each with the variants of which it is; ``count`` is the number of all."""
        for found, names in self.found.values():
            listed = ", ".join(names[:_NAMED])
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            which = f"all {count} variants" if len(names) == count else f"{listed}{more}"
            yield replace(found, message=f"{found.message} (in {which})")


def _sweep_rules(job: JobFile) -> Iterator[Diagnostic]:
    """A variant must end by itself, or the variants after it never run."""
    if not job.stops_server:
        field = "serve.keep_running" if job.companion.enabled else "companion.enabled"
        message = "the server would run until its time limit, and the next variant wait for it"
        yield in_job("never-ends", field, message, "let the companion stop the server, which is the default")


def _in_one_rules(plan: Plan) -> Iterator[Diagnostic]:
    """A single job for all variants has one kind of nodes."""
    if any(len(stage.components) > 1 for stage in plan.stages):
        message = "needs a heterogeneous job, which a single job for all variants is not"
        yield in_job("heterogeneous", "serve.disaggregated", message, "--set sweep.allocation=each")
