"""``trtllm-hpc bench compare``: whether one measurement is worse than another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli.measurements import Found, MeasurementType
from trtllm_hpc.cli.options import json_option, runs_option
from trtllm_hpc.errors import InvalidMeasurement

if TYPE_CHECKING:
    from trtllm_hpc.bench.comparison.rows import Comparison
    from trtllm_hpc.bench.comparison.tolerance import Tolerance


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
    help="Figures may be so far apart, as a share of A's,",
)
@click.option(
    "--absolute-tolerance",
    type=click.FloatRange(min=0),
    metavar="NUMBER",
    help="and this much more, in the unit of each.  [default: 0; upstream's 50 with --upstream-json]",
)
@click.option(
    "--upstream-json",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Compare A with a file for upstream's --check-perf-json, by upstream's formulas, instead of B.",
)
@click.option("--upstream-key", metavar="KEY", help="The entry of that file.")
@json_option
def command(
    a: Found,
    b: Found | None,
    runs: Any,
    relative_tolerance: float,
    absolute_tolerance: float | None,
    upstream_json: Path | None,
    upstream_key: str | None,
    as_json: bool,
) -> None:
    """Compare measurement B with A, figure by figure, at the levels of load that both have.

    A and B are RUN, RUN:NAME or a file results/NAME.json. Ends with exit code
    10 if B is worse than A in any figure, beyond the tolerance and by more
    than chance. Figures whose spread is unknown are shown and decide nothing:
    measure both with --repeats 5.

    \b
    Examples:
      trtllm-hpc bench compare latest:before latest:after
      trtllm-hpc bench compare yesterday/results/sweep.json latest:sweep --relative-tolerance 0.1
      trtllm-hpc bench compare latest --upstream-json base.json --upstream-key llama
    """
    from trtllm_hpc.bench.comparison.tolerance import UPSTREAM, Tolerance

    usual = 0.0 if upstream_json is None else UPSTREAM.absolute
    tolerance = Tolerance(relative_tolerance, usual if absolute_tolerance is None else absolute_tolerance)
    if upstream_json is not None or upstream_key is not None:
        if upstream_json is None or upstream_key is None or b is not None:
            raise click.UsageError("--upstream-json and --upstream-key go together, in the place of B.")
        _compare_with_file(a, upstream_json, upstream_key, tolerance)
    elif b is None:
        raise click.UsageError("B is missing: the measurement to compare with A.")
    else:
        _compare(a, b, tolerance, as_json)


def _compare(a: Found, b: Found, tolerance: Tolerance, as_json: bool) -> None:
    from trtllm_hpc.bench.comparison.compare import Side, compare
    from trtllm_hpc.bench.comparison.rows import refuse_worse

    first, second = (Side(found.call_name, found.summary(), found.records()) for found in (a, b))
    comparison = compare(first, second, tolerance)
    if as_json:
        import json

        click.echo(json.dumps(comparison.as_json(), indent=2, ensure_ascii=False))
    else:
        _print(comparison)
    refuse_worse(comparison, tolerance)


def _print(comparison: Comparison) -> None:
    from trtllm_hpc.report.comparison_table import comparison_table, remarks
    from trtllm_hpc.report.tables import print_table

    for line in remarks(comparison):
        click.echo(line)
    print_table(comparison_table(comparison))


def _compare_with_file(found: Found, path: Path, key: str, tolerance: Tolerance) -> None:
    from trtllm_hpc.bench.comparison.rows import Worse
    from trtllm_hpc.bench.upstream import check_reference
    from trtllm_hpc.cli.bench_show import upstream_passes

    measurement = found.summary()
    if not measurement.verdict.valid:
        wrong = " ".join(measurement.verdict.findings)
        raise InvalidMeasurement(f"The figures of {found.call_name} may not be used: {wrong}")
    apart = [
        f"{label}: {sentence}" if len(measurement.levels) > 1 else sentence
        for label, fields in upstream_passes(found)
        for sentence in check_reference(fields, path, key, tolerance)
    ]
    if apart:
        raise Worse("\n".join(apart))
    click.echo(f"{found.call_name} is within {tolerance} of {key} in {path}.")
