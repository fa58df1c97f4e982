"""``trtllm-hpc bench``: measure the served model; list, show and compare measurements."""

from __future__ import annotations

import click

from trtllm_hpc.cli.default_group import DefaultGroup

_COMMANDS: dict[str, str] = {
    "run": "Measure; 'run' may be left out.",
    "list": "List the measurements of a run.",
    "show": "Print a saved measurement, or convert it to another format.",
    "compare": "Check whether one measurement is worse than another.",
}
"""The commands with their lines in ``--help``, which imports only the first."""
_SHARED = dict.fromkeys(("list", "show", "compare"), "saved")


@click.group("bench", cls=DefaultGroup, module="trtllm_hpc.cli.bench_", lines=_COMMANDS, shared=_SHARED)
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
