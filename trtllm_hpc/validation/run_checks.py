"""Run checks and judge what they found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.config.closed import refused
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.runtime.checks.outcome import FAIL, UNKNOWN, WARN, Outcome, fail, ok
from trtllm_hpc.validation import engine_checks as engine
from trtllm_hpc.validation import file_system_checks as places
from trtllm_hpc.validation import job_checks as job
from trtllm_hpc.validation import memory_check as memory
from trtllm_hpc.validation import slurm_checks as slurm
from trtllm_hpc.validation.context import CONTROLLER, SRUN, Check, Context
from trtllm_hpc.validation.rules import rules

CHECKS: tuple[Check, ...] = (
    *slurm.CHECKS,
    *places.CHECKS,
    *job.CHECKS,
    *engine.CHECKS,
    *memory.CHECKS,
)
"""All of them, in the order of the table."""


@dataclass(frozen=True)
class Row:
    """What one check found."""

    id: str
    title: str
    outcome: Outcome

    def as_json(self) -> dict[str, Any]:
        """One row as plain JSON types."""
        found = self.outcome
        return {
            "id": self.id,
            "title": self.title,
            "outcome": found.state,
            "sentence": found.sentence,
            "remedy": found.remedy,
        }


def run_checks(context: Context, asks: Collection[str] = ("", SRUN, CONTROLLER)) -> list[Row]:
    """Every check that applies and asks for nothing else than ``asks``."""
    return [
        Row(check.id, check.title, _judged(check, context))
        for check in CHECKS
        if check.asks in asks and check.when(context)
    ]


def _judged(check: Check, context: Context) -> Outcome:
    """What a check finds; a path that is closed to this person fails, with the key that names it."""
    try:
        return check.function(context)
    except OSError as error:
        job = context.job if context.has_job else None
        further = {"--runs": str(context.runs), "engines_folder": str(context.engines)}
        found = refused(error, job, context.cluster, further)
        if found is None:
            raise
        return fail(f"{found.field}: {found.message}", found.hint or "")


def rule_rows() -> list[Row]:
    """The rules of job files and profiles, all of which a job that loads has kept."""
    return [Row(rule.__name__.replace("_", "-"), "kept", ok(_sentence(rule))) for rule in rules()]


def _sentence(rule: Callable[..., Any]) -> str:
    """First sentence of a docstring, as a cell of a table."""
    text = " ".join((inspect.getdoc(rule) or "").split())
    return text.split(". ")[0].replace("``", "").rstrip(".")


def refuse(rows: Sequence[Row], ignored: Collection[str]) -> None:
    """Stop before the queue, unless everything that fails is to be ignored.

    Raises:
        ConfigError: with a finding for each check that fails, or for a name that no check has.
    """
    known = {check.id for check in CHECKS}
    unknown = [name for name in ignored if name not in known]
    if unknown:
        raise ConfigError(
            [
                Diagnostic(
                    "unknown-check",
                    f"no check is called {name!r}",
                    "--ignore",
                    "",
                    choices=tuple(sorted(known)),
                )
                for name in unknown
            ]
        )
    failed = [row for row in rows if row.outcome.state == FAIL and row.id not in ignored]
    if failed:
        findings = [
            Diagnostic(row.id, row.outcome.sentence, f"check {row.id}", "", hint=row.outcome.remedy)
            for row in failed
        ]
        names = " ".join(f"--ignore {row.id}" for row in failed)
        raise ConfigError(findings, hint=f"mend it, or go on all the same with {names}")


def worst(rows: Sequence[Row]) -> str:
    """The state of the whole table."""
    states = {row.outcome.state for row in rows}
    return next((state for state in (FAIL, WARN, UNKNOWN) if state in states), "ok")
