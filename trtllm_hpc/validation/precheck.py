"""The checks that ``render`` and ``submit`` make before anything is written or queued."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from trtllm_hpc.errors import FAIL, WARN, Diagnostic
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.validation.context import SRUN, Context
from trtllm_hpc.validation.run_checks import refuse, run_checks


def context_of(plan: Plan) -> Context:
    """What checks look at, for the plan of a run."""
    return Context(plan.cluster, Path(plan.run_folder).parent, Path(plan.engines_folder), plan)


def before_submission(plan: Plan, ignored: Collection[str]) -> list[str]:
    """Refuse what cannot work; returns what else a person should know, a line each.

    Slurm's controller is not asked: it will have its say in a moment.

    Raises:
        ConfigError: see :func:`trtllm_hpc.validation.run_checks.refuse`.
    """
    found = run_checks(context_of(plan), asks=("", SRUN))
    refuse(found, ignored)
    return _warnings(found)


def before_rendering(plan: Plan) -> list[str]:
    """What a person should know of a run that is only written; needs no Slurm."""
    return _warnings(run_checks(context_of(plan), asks=("",)))


def _warnings(found: list[Diagnostic]) -> list[str]:
    lines = []
    for it in found:
        if it.state in (WARN, FAIL):
            fails = " (submit refuses this)" if it.state == FAIL else ""
            lines.append(f"warning: {it.code}: {it.message}{fails}")
            lines += [f"  next: {it.hint}"] if it.hint else []
    return lines
