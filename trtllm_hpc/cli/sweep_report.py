"""``trtllm-hpc sweep report``: the frontier of a sweep, the best variant, and the points as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtllm_hpc.api.sweep import Sweep
from trtllm_hpc.cli.options import OutputFile, json_option, print_json, runs_option
from trtllm_hpc.cli.sweep_saved import sweep_argument

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("report")
@sweep_argument
@click.option("--slo", metavar="LIMITS", help="Rank under these limits.  [default: those of the job file]")
@click.option("--gpu-price", type=click.FloatRange(min=0), metavar="PRICE", help="Price of a GPU-hour.")
@click.option("--to", type=OutputFile(), metavar="FILE", help="The page.  [default: report.html of SWEEP]")
@click.option("--csv", type=OutputFile(), metavar="FILE", help="Write a row for each level of each variant.")
@click.option("--png", type=_FOLDER, metavar="FOLDER", help="Draw each chart as an image.")
@runs_option
@json_option
def report_command(
    sweep: Sweep,
    slo: str | None,
    gpu_price: float | None,
    runs: Path | None,
    as_json: bool,
    **files: Path | None,
) -> None:
    """Write the report of SWEEP, one HTML file, and name its best variant.

    It shows what has been measured so far. The best variant has the most output
    tokens/s/GPU at its valid levels that hold the SLO. Needs the extra 'report'.
    With --json the page is written only with --to.

    \b
    Examples:
      trtllm-hpc sweep report latest --slo 'ttft.p99<500ms,tpot.p99<50ms' --gpu-price 2.5
      trtllm-hpc sweep report latest --csv points.csv --png charts
    """
    from trtllm_hpc.report.html.page import draw_charts
    from trtllm_hpc.sweeps.page import sections_of, write_report
    from trtllm_hpc.sweeps.results import write_csv

    results = sweep.results(slo=slo, gpu_price=gpu_price)
    files["to"] = files["to"] or (None if as_json else sweep.paths.report)
    writers: dict[str, Any] = {
        "csv": write_csv,
        "png": lambda results, folder: draw_charts(sections_of(results), folder),
        "to": write_report,
    }
    for name, write in writers.items():
        if (path := files[name]) is not None:
            write(results, path)
            click.echo(path, err=as_json)
    if as_json:
        print_json(results)
    else:
        click.echo(results.best.sentence)
