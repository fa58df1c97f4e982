"""``trtllm-hpc logs``: list or print the logs of a run."""

from __future__ import annotations

import re
from typing import Any

import click

from trtllm_hpc.cli.shared import json_option, print_json, run_argument
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.logs.causes.explain import cause_lines
from trtllm_hpc.logs.files import LogFile, list_logs
from trtllm_hpc.logs.printing import Filter, followed_lines, written_lines
from trtllm_hpc.logs.reading import for_output
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import PROGRAMS, STEPS, RunPaths, call_name
from trtllm_hpc.report.log_table import list_with_causes, print_logs
from trtllm_hpc.report.tables import sentences


def _pattern(ctx: click.Context, param: click.Parameter, value: str | None) -> re.Pattern[str] | None:
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{value!r} is not a regular expression: {error}.") from None


@click.command("logs")
@run_argument
@click.option(
    "--stage",
    "step",
    type=click.Choice([*STEPS, *PROGRAMS]),
    metavar="STAGE",
    help=f"Only the logs of this stage: {', '.join((*STEPS, *PROGRAMS))}.",
)
@click.option(
    "--rank", type=click.IntRange(min=0), metavar="N", help="Only this rank's log.  [default stage: serve]"
)
@click.option(
    "--instance", type=click.IntRange(min=0), metavar="N", help="Only the logs of this server instance."
)
@click.option("--follow", "-f", is_flag=True, help="Print new lines until the stages have ended.")
@click.option(
    "--grep",
    "pattern",
    callback=_pattern,
    metavar="REGEX",
    help="Only matching lines; exit code 1 if no line matches.",
)
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each log.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    run: RunPaths,
    runs: Any,
    step: str | None,
    rank: int | None,
    instance: int | None,
    follow: bool,
    pattern: re.Pattern[str] | None,
    tail: int | None,
    as_json: bool,
) -> None:
    """List the logs of RUN, or print the logs that the options select.

    The list has the state, the size and the first error of each log, and the cause
    of a failure. With more than 8 ranks, ranks in the same state share a line; --json
    lists every rank.

    \b
    Examples:
      trtllm-hpc logs                          list the logs of the latest run
      trtllm-hpc logs RUN --rank 1             print the log of the server's rank 1
      trtllm-hpc logs RUN --follow             print everything as it is written
      trtllm-hpc logs RUN --grep 'error|warn'  print matching lines, failed ranks first
    """
    if (step, rank, instance, pattern, tail) == (None,) * 5 and not follow:
        rows, causes = list_with_causes(run)
        if as_json:
            print_json(rows)
            return
        print_logs(rows)
        if causes:
            click.echo(sentences(cause_lines(causes)))
        return
    if as_json:
        raise click.UsageError("--json prints the list of logs: leave the other options out.")
    if step is None and (rank is not None or instance is not None):
        step = "serve"
    plan = RunSnapshot(run).plan
    if instance is not None:
        if step != "serve":
            raise click.BadParameter("only the stage 'serve' has instances.", param_hint="'--instance'")
        instances = len(RunSnapshot(run).steps("serve"))
        if instance >= instances:
            known = "one instance" if instances == 1 else f"instances 0 to {instances - 1}"
            raise click.BadParameter(f"run {run.run_id} has {known}.", param_hint="'--instance'")
    if step == "build" and plan is not None and plan.stage("build") is None:
        reason = "its job file names a finished engine, or its backend needs none"
        if plan.engine_found is not None:
            reason = f"its engine came from the cache ({plan.engine_found})"
        message = f"Run {run.run_id} has no build stage: {reason}."
        raise RunNotFound(message, hint=f"trtllm-hpc logs {call_name(run)}")
    if step is not None and rank is not None:
        if step in PROGRAMS:
            raise click.BadParameter(f"the {step} is one process and has no ranks.", param_hint="'--rank'")
        if plan is not None and rank >= (ranks := plan.ranks(step)):
            known = {1: "rank 0 only", 2: "ranks 0 and 1"}.get(ranks, f"ranks 0 to {ranks - 1}")
            raise click.BadParameter(f"{step} of run {run.run_id} has {known}.", param_hint="'--rank'")
    wanted = Filter(pattern, tail)

    def selected() -> list[LogFile]:
        return list_logs(RunSnapshot(run), step, rank, instance)

    if follow:
        found, prefixed = followed_lines(selected, wanted), rank is None or len(selected()) != 1
    else:
        chosen = selected()
        sizes = [log.size_bytes for log in chosen]
        if all(size is None for size in sizes):
            names = ", ".join(log.name for log in chosen) or "any stage"
            message = f"Run {run.run_id} has not written the log of {names} yet."
            raise RunNotFound(message, hint=f"trtllm-hpc logs {call_name(run)}")
        logs = [log for log, size in zip(chosen, sizes, strict=True) if size]
        if pattern is not None:
            logs.sort(key=lambda log: not log.state.startswith("failed"))
        found, prefixed = written_lines(logs, wanted), len(logs) > 1
    count = 0
    for log, lines in found:
        count += len(lines)
        # One write for all new lines keeps lines of several logs apart.
        prefix = f"{log.name} " if prefixed else ""
        text = "\n".join([prefix + line for line in lines])
        # color=True keeps the log's own colour codes, also in a pipe or a file.
        click.echo(for_output(text), color=True)
    if not count and pattern is not None:
        ctx.exit(1)
