"""``trtllm-hpc bench`` and ``sweep``: groups of commands whose first may be left out."""

from __future__ import annotations

import click

from trtllm_hpc.cli import LazyGroup


class DefaultGroup(LazyGroup):
    """A group whose command ``run`` may be left out: ``bench latest`` is ``bench run latest``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``bench latest --rate 4`` as ``bench run latest --rate 4``."""
        if not args and ctx.resilient_parsing:
            return super().parse_args(ctx, args)  # for shell completion, which offers commands, too
        if not args or (args[0] not in self.lines and args[0] not in ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both forms."""
        argument = next(it for it in self._default.params if isinstance(it, click.Argument))
        formatter.write_usage(ctx.command_path, f"{argument.make_metavar(ctx)} [OPTIONS]")
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]...", prefix=" " * len("Usage: "))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of ``run``, and then the commands."""
        self._default.format_options(click.Context(self._default, ctx, "run"), formatter)
        self.format_commands(ctx, formatter)

    @property
    def _default(self) -> click.Command:
        command = self.get_command(click.Context(self), "run")
        assert command is not None
        return command


_BENCH = {
    "run": "Measure; 'run' may be left out.",
    "list": "List the measurements of a run.",
    "show": "Print a saved measurement, or convert it to another format.",
    "compare": "Check whether one measurement is worse than another.",
}
"""The commands with their lines in ``--help``, which imports only the first."""
_SWEEP = {
    "run": "Submit every variant of a job file; 'run' may be left out.",
    "list": "List the sweeps.",
    "status": "Show the state of each variant.",
    "watch": "Follow a sweep to its end.",
    "cancel": "Cancel a sweep, or some of its variants.",
    "resume": "Submit what has not completed.",
    "report": "Write the frontier and the best variant as one HTML file.",
}


def _saved(commands: dict[str, str]) -> dict[str, str]:
    return dict.fromkeys([name for name in commands if name != "run"], "saved")


@click.group("bench", cls=DefaultGroup, module="trtllm_hpc.cli.bench_", lines=_BENCH, shared=_saved(_BENCH))
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


@click.group("sweep", cls=DefaultGroup, module="trtllm_hpc.cli.sweep_", lines=_SWEEP, shared=_saved(_SWEEP))
def sweep_command() -> None:
    """Run the variants of JOB: every combination of some keys' values.

    The variants stand in the job file's section `sweep`, or in --sweep. All are
    checked before anything is queued. Each variant gets a run folder of its own
    in RUNS/sweeps/ID/, and jobs of its own, which Slurm starts without this
    command. A variant that fails stops no other one.

    \b
    Examples:
      trtllm-hpc sweep job.yaml --sweep engine.tensor_parallel=2,4,8
      trtllm-hpc sweep job.yaml --sweep engine.max_batch_size=64,256 --set sweep.max_running=2 --wait
      trtllm-hpc sweep job.yaml --set sweep.allocation=one
      trtllm-hpc sweep job.yaml --check
      trtllm-hpc sweep status latest
    """
