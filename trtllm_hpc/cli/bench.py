"""``trtllm-hpc bench``: measure the served model, look at measurements, compare two."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import Any

import click

from trtllm_hpc.errors import RunNotFound

_COMMANDS: dict[str, str] = {
    "run": "Measure; the word may be left out.",
    "list": "List the measurements of a run.",
    "show": "Print a measurement again, or write it in another form.",
    "compare": "Tell whether one measurement is worse than another.",
}
"""Each command's module is ``bench_<name>``; help imports the first only."""
_LEFT_OUT = "trtllm_hpc.bench.left_out"
"""Where the word is kept that stands in the place of a command."""
_NEAR = 0.65
"""How alike a mistyped command is, by ``difflib``; ``latest`` and ``list`` are 0.6."""


class BenchGroup(click.Group):
    """A group whose first command is meant where none is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of use."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module, now that it is wanted."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"trtllm_hpc.cli.bench_{cmd_name}").command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``bench latest --rate 4`` is ``bench run latest --rate 4``."""
        if not args and ctx.resilient_parsing:
            return super().parse_args(ctx, args)  # a shell asks what may come next: a command, too
        if not args or (args[0] not in _COMMANDS and args[0] not in ctx.help_option_names):
            ctx.meta[_LEFT_OUT] = args[:1]
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; who mistyped its name is told the name."""
        try:
            return super().invoke(ctx)
        except RunNotFound as error:
            [word] = ctx.meta.get(_LEFT_OUT) or [""]
            near = get_close_matches(word, _COMMANDS, n=1, cutoff=_NEAR)
            if not near or repr(word) not in error.message:
                raise
            hint = f"{ctx.command_path} {near[0]}"
            raise RunNotFound(f"{error.message} Did you mean the command {near[0]!r}?", hint=hint) from None

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Both forms."""
        formatter.write_usage(ctx.command_path, "[RUN] [OPTIONS]")
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]...", prefix=" " * len("Usage: "))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Those of ``run``, and then the commands."""
        run = self.get_command(ctx, "run")
        assert run is not None
        run.format_options(click.Context(run, ctx, "run"), formatter)
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Commands, and what may stand behind the one that is left out."""
        run = self.get_command(ctx, "run")
        assert run is not None
        if incomplete.startswith("-"):
            return run.shell_complete(click.Context(run, ctx, "run"), incomplete)
        [argument] = [it for it in run.params if it.name == "run"]
        return super().shell_complete(ctx, incomplete) + argument.shell_complete(ctx, incomplete)


@click.group("bench", cls=BenchGroup)
def command() -> None:
    """Measure the served model of RUN, and tell whether the figures can be believed.

    Settings are those of the run's job file (companion.benchmark); options take
    their place. Everything is written into results/ of the run folder: a
    record of each request, the workload, the server's own metrics, the table
    and a report. Ends with exit code 10 where the figures may not be used,
    and says why.

    \b
    Examples:
      trtllm-hpc bench latest --requests 100 --rate 8
      trtllm-hpc bench latest --rate 1,2,4,8 --duration 30 --repeats 3 --save-as sweep
      trtllm-hpc bench latest --concurrency 1,8,32 --workload normal --input-tokens 128
      trtllm-hpc bench latest --find-max --slo 'ttft.p99<500ms,tpot.p99<50ms'
      trtllm-hpc bench compare latest:before latest:after
    """
