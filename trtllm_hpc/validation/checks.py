"""Run checks: for ``doctor``, and before a run is rendered or submitted."""

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
"""All checks, in the order in which ``doctor`` prints them."""
_IDS = tuple(sorted(check.id for check in CHECKS))


def run_checks(context: Context, needs: Collection[str] = ("", SRUN, CONTROLLER, LIMITS)) -> list[Diagnostic]:
    """Run every check that applies and whose need is in ``needs``; a result's code is the check's ID."""
    results = {check.id: _run(check, context) for check in CHECKS if check.needs in needs}
    return [replace(result, code=name) for name, result in results.items() if result is not None]


def _run(check: Check, context: Context) -> Diagnostic | None:
    """Run a check if it applies; a path that the user may not read counts as a failure."""
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
    """The results of all checks, and the memory that the model needs on one rank."""

    checks: tuple[Diagnostic, ...]
    """Results of the checks; ``code`` is the check's ID, which ``--ignore`` takes."""
    memory: MemoryPlan | None
    """Memory plan of one rank; ``None`` without a job file, or if the model's memory is unknown."""
    notes: tuple[str, ...]
    """Remarks about the profile and the job in which nothing is wrong."""

    @property
    def ok(self) -> bool:
        """Whether no check fails, so that ``submit`` would accept the job."""
        return all(row.state != FAIL for row in self.checks)


def ignoring(results: Sequence[Diagnostic], ignored: Collection[str]) -> list[Diagnostic]:
    """Return the results, in which failed checks of ``ignored`` are warnings.

    Raises ConfigError with every name in ``ignored`` that is not the ID of a check.
    """
    unknown = [
        Diagnostic("unknown-check", f"no check is called {name!r}", "--ignore", choices=_IDS)
        for name in ignored
        if name not in _IDS
    ]
    if unknown:
        raise ConfigError(unknown)
    return [
        replace(result, state=WARN, message=f"{result.message} (ignored)")
        if result.state == FAIL and result.code in ignored
        else result
        for result in results
    ]


def check_submission(plan: Plan, ignored: Collection[str], slurm: SlurmAnswers | None = None) -> list[str]:
    """Refuse a plan that cannot work, and return the lines of all warnings.

    The checks ask Slurm's controller only for partitions and their limits, because ``sbatch``, which runs a
    moment later, checks the rest but accepts jobs that can never start. ``slurm`` shares the controller's
    answers between plans.

    Raises:
        ConfigError: a check that is not in ``ignored`` fails, or ``ignored`` has an unknown name.
    """
    results = ignoring(run_checks(Context.of_plan(plan, slurm), needs=("", SRUN, LIMITS)), ignored)
    if failed := [result for result in results if result.state == FAIL]:
        names = " ".join(f"--ignore {result.code}" for result in failed)
        raise ConfigError(
            [replace(result, file=f"check {result.code}") for result in failed],
            hint=f"fix {'it' if len(failed) == 1 else 'them'}, or override the check with {names}",
        )
    return _warnings(results)


def check_rendering(plan: Plan) -> list[str]:
    """Return the lines of all warnings about a plan that is only rendered; does not need Slurm."""
    return _warnings(run_checks(Context.of_plan(plan), needs=("",)))


def _warnings(results: Sequence[Diagnostic]) -> list[str]:
    lines = []
    for result in results:
        if result.state in (WARN, FAIL):
            fails = " (submit refuses this)" if result.state == FAIL else ""
            lines.append(f"warning: {result.code}: {result.message}{fails}")
            lines += [f"  next: {result.hint}"] if result.hint else []
    return lines
