"""The checks that ``render`` and ``submit`` make before anything is written or queued."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from trtllm_hpc.plan.model import Plan
from trtllm_hpc.runtime.checks.outcome import FAIL, WARN
from trtllm_hpc.validation.context import SRUN, Context
from trtllm_hpc.validation.run_checks import Row, refuse, run_checks


def context_of(plan: Plan) -> Context:
    """What checks look at, for the plan of a run."""
    return Context(plan.cluster, Path(plan.run_folder).parent, Path(plan.engines_folder), plan)


def before_submission(plan: Plan, ignored: Collection[str]) -> list[str]:
    """Refuse what cannot work; returns what else a person should know, a line each.

    Slurm's controller is not asked: it will have its say in a moment.

    Raises:
        ConfigError: see :func:`trtllm_hpc.validation.run_checks.refuse`.
    """
    rows = run_checks(context_of(plan), asks=("", SRUN))
    refuse(rows, ignored)
    return _told(rows)


def before_rendering(plan: Plan) -> list[str]:
    """What a person should know of a run that is only written; needs no Slurm."""
    return _told(run_checks(context_of(plan), asks=("",)))


def _told(rows: list[Row]) -> list[str]:
    lines = []
    for row in rows:
        if row.outcome.state in (WARN, FAIL):
            fails = " (submit refuses this)" if row.outcome.state == FAIL else ""
            lines.append(f"warning: {row.id}: {row.outcome.sentence}{fails}")
            lines += [f"  next: {row.outcome.remedy}"] if row.outcome.remedy else []
    return lines
