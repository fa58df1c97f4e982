"""``trtllm-hpc bench compare``: whether one measurement is worse than another."""

from __future__ import annotations

from typing import Any

import click

from trtllm_hpc.api.measurement import Measurement
from trtllm_hpc.cli.measurements import MeasurementType
from trtllm_hpc.cli.options import json_option, print_json, runs_option


@click.command("compare")
@runs_option
@click.argument("a", type=MeasurementType(), metavar="A")
@click.argument("b", type=MeasurementType(), metavar="B")
@click.option(
    "--relative-tolerance",
    type=click.FloatRange(min=0),
    default=0.05,
    show_default=True,
    metavar="SHARE",
    help="How far a figure of B may be from that of A, as a share of A's.",
)
@click.option(
    "--absolute-tolerance",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="NUMBER",
    help="Added to the relative one, in the unit of each figure.",
)
@click.option(
    "--allow-different-workload",
    is_flag=True,
    help="Judge B even if its prompts, lengths or arrivals differ from A's.",
)
@json_option
def command(
    a: Measurement,
    b: Measurement,
    runs: Any,
    relative_tolerance: float,
    absolute_tolerance: float,
    allow_different_workload: bool,
    as_json: bool,
) -> None:
    """Compare measurement B with A, figure by figure, at the levels of load that both have.

    A and B are RUN, RUN:NAME or a file results/NAME.json. The exit code is 10
    if B is worse than A in any figure, by more than the tolerance and by more
    than chance. It is 2 if the two had different workloads: their figures are
    shown but not judged. A single pass decides nothing, because its spread is
    unknown: measure both with --repeats 5.

    \b
    Examples:
      trtllm-hpc bench compare latest:before latest:after
      trtllm-hpc bench compare yesterday/results/sweep.json latest:sweep --relative-tolerance 0.1
    """
    from trtllm_hpc.bench.analysis.compare import Side, Tolerance, compare, raise_if_worse

    tolerance = Tolerance(relative_tolerance, absolute_tolerance)
    first, second = (Side(found.call_name, found.summary) for found in (a, b))
    comparison = compare(first, second, tolerance, allow_different_workload=allow_different_workload)
    if as_json:
        print_json(comparison)
    else:
        from trtllm_hpc.report.comparison_table import print_comparison

        print_comparison(comparison)
    raise_if_worse(comparison, tolerance)
