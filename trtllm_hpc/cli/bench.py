"""``trtllm-hpc bench``: measure the served model, look at measurements, compare two."""

from __future__ import annotations

import importlib

import click

_COMMANDS: dict[str, str] = {
    "run": "Measure; the word may be left out.",
    "list": "List the measurements of a run.",
    "show": "Print a measurement again, or write it in another form.",
    "compare": "Tell whether one measurement is worse than another.",
}
"""Each command's module is ``bench_<name>``; help imports the first only."""


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
        if not args or (args[0] not in _COMMANDS and args[0] not in ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)

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
        return super().shell_complete(ctx, incomplete) + run.params[0].shell_complete(ctx, incomplete)


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
