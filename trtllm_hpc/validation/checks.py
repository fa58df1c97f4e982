"""Run the checks: those of ``doctor``, and those before a run is rendered or submitted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from trtllm_hpc.config.diagnostics import path_refused
from trtllm_hpc.errors import FAIL, WARN, ConfigError, Diagnostic, fail
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.tensorrt_llm.memory import MemoryPlan
from trtllm_hpc.validation import file_system_checks, job_checks, slurm_checks
from trtllm_hpc.validation.context import CONTROLLER, LIMITS, SRUN, Check, Context, SlurmAnswers

CHECKS = (*slurm_checks.CHECKS, *file_system_checks.CHECKS, *job_checks.CHECKS)
"""All checks, in the order of the table."""
_IDS = tuple(sorted(check.id for check in CHECKS))


def run_checks(context: Context, needs: Collection[str] = ("", SRUN, CONTROLLER, LIMITS)) -> list[Diagnostic]:
    """Run every check that applies and needs nothing but ``needs``; a check's id is its diagnostic's code."""
    found = {check.id: _run(check, context) for check in CHECKS if check.needs in needs}
    return [replace(it, code=name) for name, it in found.items() if it is not None]


def _run(check: Check, context: Context) -> Diagnostic | None:
    """Run one check, if it applies; a path that the user may not read is a failure."""
    if (check.of_job and not context.has_job) or (check.on_slurm and not context.on_slurm):
        return None
    try:
        return check.function(context)
    except OSError as error:
        if error.filename is None:
            raise
        refused = path_refused(error)
        return fail(refused.message, refused.hint or "")


@dataclass(frozen=True)
class DoctorReport:
    """What every check has found, and the memory that the model needs on one rank."""

    checks: tuple[Diagnostic, ...]
    """``code`` is the check's id, which ``--ignore`` takes."""
    memory: MemoryPlan | None
    """``None`` without a job file, or if there is no sum for its model."""
    notes: tuple[str, ...]
    """What one should know, though nothing is wrong."""

    @property
    def ok(self) -> bool:
        """Whether no check fails: ``submit`` would not refuse the job."""
        return all(row.state != FAIL for row in self.checks)


def ignoring(found: Sequence[Diagnostic], ignored: Collection[str]) -> list[Diagnostic]:
    """Return what the checks have found, where a check in ``ignored`` warns instead of failing.

    Raises ConfigError with every name in ``ignored`` that no check has.
    """
    unknown = [
        Diagnostic("unknown-check", f"no check is called {name!r}", "--ignore", choices=_IDS)
        for name in ignored
        if name not in _IDS
    ]
    if unknown:
        raise ConfigError(unknown)
    return [
        replace(it, state=WARN, message=f"{it.message} (ignored)")
        if it.state == FAIL and it.code in ignored
        else it
        for it in found
    ]


def check_submission(plan: Plan, ignored: Collection[str], slurm: SlurmAnswers | None = None) -> list[str]:
    """Refuse a plan that cannot work; returns the lines of all warnings.

    Slurm's controller is asked only for its partitions and their limits: ``sbatch`` asks it for the rest a
    moment later, but takes a job that can never start, and does not list the partitions. ``slurm`` are its
    answers, where many plans are checked.

    Raises:
        ConfigError: a check fails that is not in ``ignored``, or a name there is unknown.
    """
    found = ignoring(run_checks(Context.of_plan(plan, slurm), needs=("", SRUN, LIMITS)), ignored)
    if failed := [it for it in found if it.state == FAIL]:
        names = " ".join(f"--ignore {it.code}" for it in failed)
        raise ConfigError(
            [replace(it, file=f"check {it.code}") for it in failed],
            hint=f"fix it, or override the check with {names}",
        )
    return _warnings(found)


def check_rendering(plan: Plan) -> list[str]:
    """Return the lines of all warnings about a plan that is only written; needs no Slurm."""
    return _warnings(run_checks(Context.of_plan(plan), needs=("",)))


def _warnings(found: Sequence[Diagnostic]) -> list[str]:
    lines = []
    for it in found:
        if it.state in (WARN, FAIL):
            fails = " (submit refuses this)" if it.state == FAIL else ""
            lines.append(f"warning: {it.code}: {it.message}{fails}")
            lines += [f"  next: {it.hint}"] if it.hint else []
    return lines
