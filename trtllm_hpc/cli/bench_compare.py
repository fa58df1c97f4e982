"""``trtllm-hpc bench compare``: whether one measurement is worse than another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.api.measurement import Measurement
from trtllm_hpc.cli.measurements import MeasurementType
from trtllm_hpc.cli.options import EXISTING_FILE, json_option, print_json, runs_option
from trtllm_hpc.errors import InvalidMeasurement

if TYPE_CHECKING:
    from trtllm_hpc.bench.analysis.compare import Tolerance


@click.command("compare")
@runs_option
@click.argument("a", type=MeasurementType(), metavar="A")
@click.argument("b", type=MeasurementType(), metavar="[B]", required=False)
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
    metavar="NUMBER",
    help="Added to the relative one, in the unit of each figure.  [default: 0; upstream's 50 with "
    "--upstream-json]",
)
@click.option(
    "--allow-different-workload",
    is_flag=True,
    help="Judge B even if its prompts, lengths or arrivals differ from A's.",
)
@click.option(
    "--upstream-json",
    type=EXISTING_FILE,
    metavar="FILE",
    help="Compare A with a file for upstream's --check-perf-json, by upstream's formulas, instead of B.",
)
@click.option("--upstream-key", metavar="KEY", help="The entry of that file.")
@json_option
def command(
    a: Measurement,
    b: Measurement | None,
    runs: Any,
    relative_tolerance: float,
    absolute_tolerance: float | None,
    allow_different_workload: bool,
    upstream_json: Path | None,
    upstream_key: str | None,
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
      trtllm-hpc bench compare latest --upstream-json base.json --upstream-key llama
    """
    from trtllm_hpc.bench.analysis.compare import UPSTREAM_TOLERANCE, Side, Tolerance, compare, raise_if_worse

    default = 0.0 if upstream_json is None else UPSTREAM_TOLERANCE.absolute
    tolerance = Tolerance(relative_tolerance, default if absolute_tolerance is None else absolute_tolerance)
    if upstream_json is not None or upstream_key is not None:
        if upstream_json is None or upstream_key is None or b is not None:
            raise click.UsageError("--upstream-json and --upstream-key go together, instead of B.")
        _compare_with_file(a, upstream_json, upstream_key, tolerance)
        return
    if b is None:
        raise click.UsageError("B is missing: the measurement to compare with A.")
    first, second = (Side(found.call_name, found.summary) for found in (a, b))
    comparison = compare(first, second, tolerance, allow_different_workload=allow_different_workload)
    if as_json:
        print_json(comparison)
    else:
        from trtllm_hpc.report.comparison_table import print_comparison

        print_comparison(comparison)
    raise_if_worse(comparison, tolerance)


def _compare_with_file(found: Measurement, path: Path, key: str, tolerance: Tolerance) -> None:
    from trtllm_hpc.bench.analysis.compare import Worse
    from trtllm_hpc.bench.analysis.upstream_table import check_reference, upstream_passes

    measurement = found.summary
    if not measurement.verdict.valid:
        wrong = " ".join(measurement.verdict.findings)
        raise InvalidMeasurement(f"The figures of {found.call_name} may not be used: {wrong}")
    differences = [
        f"{label}: {sentence}" if len(measurement.levels) > 1 else sentence
        for label, fields in upstream_passes(measurement, found.records)
        for sentence in check_reference(fields, path, key, tolerance)
    ]
    if differences:
        raise Worse("\n".join(differences))
    click.echo(f"{found.call_name} is within {tolerance} of {key} in {path}.")
