"""``trtllm-hpc bench``: measure the served model; list, show and compare measurements."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import click

from trtllm_hpc.cli import LazyGroup
from trtllm_hpc.errors import RunNotFound

_COMMANDS: dict[str, str] = {
    "run": "Measure; 'run' may be left out.",
    "list": "List the measurements of a run.",
    "show": "Print a saved measurement, or convert it to another format.",
    "compare": "Check whether one measurement is worse than another.",
}
"""The commands with their lines in ``--help``, which imports only the first."""
_SHARED = dict.fromkeys(("list", "show", "compare"), "saved")
_FIRST_WORD = "trtllm_hpc.bench.first_word"
"""Where click's context keeps the first word if it is not a command."""
_CUTOFF = 0.65
"""The similarity from which on a word is a mistyped command; ``latest`` and ``list`` have 0.6."""


class BenchGroup(LazyGroup):
    """A group whose first command is the default."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``bench latest --rate 4`` as ``bench run latest --rate 4``."""
        if not args and ctx.resilient_parsing:
            return super().parse_args(ctx, args)  # for shell completion, which offers commands, too
        if not args or (args[0] not in _COMMANDS and args[0] not in ctx.help_option_names):
            ctx.meta[_FIRST_WORD] = args[:1]
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; suggest one if its name was mistyped."""
        try:
            return super().invoke(ctx)
        except RunNotFound as error:
            [word] = ctx.meta.get(_FIRST_WORD) or [""]
            near = get_close_matches(word, _COMMANDS, n=1, cutoff=_CUTOFF)
            if not near or repr(word) not in error.message:
                raise
            hint = f"{ctx.command_path} {near[0]}"
            raise RunNotFound(f"{error.message} Did you mean the command {near[0]!r}?", hint=hint) from None

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both forms."""
        formatter.write_usage(ctx.command_path, "[RUN] [OPTIONS]")
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]...", prefix=" " * len("Usage: "))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of ``run``, and then the commands."""
        run = self.get_command(ctx, "run")
        assert run is not None
        run.format_options(click.Context(run, ctx, "run"), formatter)
        self.format_commands(ctx, formatter)

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Offer the commands, and what may follow the default one."""
        run = self.get_command(ctx, "run")
        assert run is not None
        if incomplete.startswith("-"):
            return run.shell_complete(click.Context(run, ctx, "run"), incomplete)
        [argument] = [it for it in run.params if it.name == "run"]
        return super().shell_complete(ctx, incomplete) + argument.shell_complete(ctx, incomplete)


@click.group("bench", cls=BenchGroup, module="trtllm_hpc.cli.bench_", lines=_COMMANDS, shared=_SHARED)
def command() -> None:
    """Measure the served model of RUN, or of any --url, and check whether the figures are valid.

    Settings come from the run's job file (companion.benchmark); options
    override them. Everything is written to results/ in the run folder: a
    record of each request, the workload, the server's own metrics, the table
    and a report. If the figures are not valid, the exit code is 10 and the
    message says why.

    \b
    Examples:
      trtllm-hpc bench latest --requests 100 --rate 8
      trtllm-hpc bench latest --rate 1,2,4,8 --duration 30 --repeats 3 --save-as sweep
      trtllm-hpc bench latest --concurrency 1,8,32 --workload normal --input-tokens 128
      trtllm-hpc bench latest --find-max --slo 'ttft.p99<500ms,tpot.p99<50ms'
      trtllm-hpc bench compare latest:before latest:after
      trtllm-hpc bench --url http://node7:8000/v1 --output measured --rate 4
    """
