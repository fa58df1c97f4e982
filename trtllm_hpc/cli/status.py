"""``trtllm-hpc status``: how a run is."""

from __future__ import annotations

from pathlib import Path

import click

from trtllm_hpc.cli.options import json_option, run_argument
from trtllm_hpc.paths import RunPaths


@click.command("status")
@run_argument
@json_option
def command(run: RunPaths, runs: Path | None, as_json: bool) -> None:
    """Tell how the jobs and ranks of RUN are, and what broke first.

    \b
    Examples:
      trtllm-hpc status
      trtllm-hpc status tiny-llama --json
    """
    from trtllm_hpc.lifecycle.status import run_status

    status = run_status(run)
    if as_json:
        import json

        click.echo(json.dumps(status.as_json(), indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    from trtllm_hpc.report.status import status_table
    from trtllm_hpc.report.tables import print_table

    console = Console(soft_wrap=True)
    console.print(f"run {status.run_id}", markup=False, highlight=False)
    print_table(status_table(status.as_json()))
    console.print(f"{status.state.value}: {status.sentence}", markup=False, highlight=False)
    if status.endpoint is not None:
        console.print(
            f"endpoint: http {status.endpoint.http}, grpc {status.endpoint.grpc} on {status.endpoint.host}",
            markup=False,
            highlight=False,
        )
    console.print(f"folder: {status.folder}", markup=False, highlight=False, soft_wrap=True)
