"""``trtllm-hpc evaluate``: score the answers of a served model."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli import shared
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.evaluation.scores import read_evaluation
from trtllm_hpc.paths import COMPANION_EVALUATION, SWEEPS, RunPaths, default_runs_folder, locked
from trtllm_hpc.runs.find import find_run

if TYPE_CHECKING:
    from trtllm_hpc.config.benchmark import Evaluation


@click.command("evaluate")
@shared.runs_option
@shared.optional_run
@click.option("--tasks", metavar="NAME[,...]", help="Tasks of lm-eval, or the shipped task 'facts'.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Ask only the first N questions of each task."
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    metavar="SCORE",
    help="Gate: lowest accepted score of each task, e.g. 0.9.",
)
@click.option(
    "--not-worse-than", metavar="RUN", help="Gate: no score may be significantly worse than this run's."
)
@shared.section_option("companion.evaluate", "few_shot=5")
@click.option("--prepare", metavar="TASK[,...]", help="Only fetch the data of tasks, on a login node.")
@click.option("--save-as", "name", metavar="NAME", help="Name of the scores. An earlier NAME is continued.")
@shared.json_option
def command(
    run: RunPaths | None,
    runs: Path | None,
    name: str | None,
    prepare: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Ask the served model of RUN the questions of tasks, and score the answers.

    Options override the settings in the run's job file (companion.evaluate). The exit
    code is 18 if the scores fail the gate. Needs the extra 'evaluate'.

    \b
    Examples:
      trtllm-hpc evaluate latest --tasks facts --threshold 0.3
      trtllm-hpc evaluate --prepare gsm8k,mmlu_pro
      trtllm-hpc evaluate latest --tasks gsm8k --limit 200 --not-worse-than chat-2026
    """
    from trtllm_hpc.client.async_client import AsyncClient
    from trtllm_hpc.evaluation import tasks
    from trtllm_hpc.evaluation.evaluate import TIMEOUT_S, evaluate
    from trtllm_hpc.runs.endpoint import endpoint_of, follower_of

    if prepare:
        chosen = _settings(None, settings, {"tasks": prepare})
        for task in chosen.tasks:
            if tasks.is_shipped(task):
                click.echo(f"{task}: shipped with trtllm-hpc, nothing to fetch")
                continue
            count = tasks.prepare(task, chosen)
            click.echo(f"{task}: {count} questions are in {tasks.data_folder(chosen)}")
        return
    run = run or find_run("latest", runs or default_runs_folder())
    chosen, name = _with_base(_settings(run, settings, given), run, runs), _checked(name)
    endpoint, follow = endpoint_of(run, 0.0), follower_of(run, restarts=True)
    client = partial(AsyncClient, endpoint, protocol="openai", timeout_s=TIMEOUT_S, follow=follow)

    shared.print_note(f"to continue after an interruption: --save-as {name}")
    file = run.evaluation(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    message = f"Another command is evaluating {run.run_id} as {name!r}: choose another name."
    busy = click.BadParameter(message, param_hint="'--save-as'")
    with locked(file.with_name(f".{name}.lock"), busy):
        is_quiet = shared.is_quiet()
        summary = evaluate(run, name, client, chosen, (lambda *_: None) if is_quiet else _show)
    shared.print_json(summary) if as_json else click.echo("\n".join(summary.lines()))
    summary.check(f"read questions, targets and answers: less {run.evaluation(name, 'samples.jsonl')}")


def _show(done: int, of: int) -> None:
    """Print a line after each tenth of the answers."""
    if done * 10 // of != (done - 1) * 10 // of:
        click.echo(f"{done} of {of} answers", err=True)


def _checked(name: str | None) -> str:
    """Return a valid name of an evaluation. Only the companion may use the name of its own evaluation."""
    from trtllm_hpc.api.measurement import NAME

    chosen = name or time.strftime("evaluate-%Y%m%d-%H%M%S")
    if not NAME.fullmatch(chosen):
        words = "must be 1 to 100 letters, digits, '.', '_' and '-', and begin with a letter or a digit."
        raise click.BadParameter(f"{chosen!r} {words}", param_hint="'--save-as'")
    outside = "TRTLLM_HPC_JOB_ID" not in os.environ
    if chosen.endswith(".scores") or (chosen == COMPANION_EVALUATION and outside):
        message = f"{chosen!r} is reserved for the job's own evaluation: choose another name."
        raise click.BadParameter(message, param_hint="'--save-as'")
    return chosen


def _with_base(settings: Evaluation, run: RunPaths, runs: Path | None) -> Evaluation:
    """Return the settings with the folder of the run of ``not_worse_than``. Raises RunNotFound."""
    if settings.not_worse_than is None:
        return settings
    beside = run.folder.resolve().parent
    beside = beside.parents[1] if beside.parent.name == SWEEPS else beside
    base = find_run(settings.not_worse_than, runs or beside)
    if read_evaluation(base.evaluation()) is None:
        hint = "name a run whose job file has companion.evaluate, and that has completed"
        raise RunNotFound(f"Run {base.run_id} has no finished evaluation to compare with.", hint=hint)
    return settings.model_copy(update={"not_worse_than": str(base.folder.resolve())})


def _settings(run: RunPaths | None, settings: tuple[str, ...], given: dict[str, Any]) -> Evaluation:
    """Return the job file's settings, overridden by ``--set`` and by the options."""
    from pydantic import ValidationError

    from trtllm_hpc.config.benchmark import Evaluation
    from trtllm_hpc.config.files import read_spec

    own = None if run is None else read_spec(run.spec).companion.evaluate
    values = {} if own is None else own.model_dump()
    values |= shared.section_settings(settings) | {
        key: value for key, value in given.items() if value is not None
    }
    if isinstance(values.get("tasks"), str):
        values["tasks"] = [task.strip() for task in values["tasks"].split(",") if task.strip()]
    if not values.get("tasks"):
        raise click.UsageError(
            "The run's job file has no companion.evaluate: name tasks, e.g. --tasks facts."
        )
    try:
        return Evaluation.model_validate(values)
    except ValidationError as error:
        wrong = [f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors()]
        raise click.UsageError("; ".join(wrong)) from None
