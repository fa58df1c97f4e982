"""``trtllm-hpc render``: write a run folder without submitting it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtllm_hpc.cli.options import job_options, json_option, print_json, print_warning
from trtllm_hpc.report.engines import (
    FoundEngine,
    MissedEngine,
    UnknownEngine,
    engine_lines,
    engine_record,
)

if TYPE_CHECKING:
    from trtllm_hpc.plan.model import Plan


@dataclass(frozen=True)
class RenderedRun:
    """A run folder with its scripts; nothing is submitted."""

    run_id: str
    folder: str
    """The run folder."""
    scripts: tuple[str, ...]
    """Paths of the sbatch scripts, in the order of submission."""
    engine: FoundEngine | MissedEngine | UnknownEngine | None
    """What the cache has; ``None`` for a run that needs no engine from it."""


@click.command("render")
@job_options
@json_option
def command(
    job_file: Path, cluster: str, settings: tuple[str, ...], runs: Path | None, as_json: bool
) -> None:
    """Write the run folder of JOB with all its scripts; submit nothing.

    Needs no Slurm on this machine. The scripts are those that `submit` would
    submit, byte for byte.

    \b
    Examples:
      trtllm-hpc render job.yaml --cluster pyxis
      trtllm-hpc render job.yaml --set serve.nodes=2 --runs /scratch/$USER/runs
    """
    from trtllm_hpc.runs.create import create_run
    from trtllm_hpc.validation.checks import check_rendering

    plan, paths, engine = create_run(
        job_file, cluster, settings, runs, check=check_rendering, warn=print_warning, command="render"
    )
    scripts = [paths.sbatch(stage.name) for stage in plan.stages]
    if as_json:
        files = tuple(str(file) for file in scripts)
        print_json(RenderedRun(paths.run_id, str(paths.folder), files, engine_record(engine)))
        return
    click.echo(f"rendered {paths.folder}")
    for script in scripts:
        click.echo(f"  {script.relative_to(paths.folder)}")
    for line in engine_lines(engine):
        click.echo(line)
    click.echo("\nTo submit by hand, in this order:")
    click.echo(by_hand(plan, paths.folder))


def by_hand(plan: Plan, folder: Path) -> str:
    """Return the commands that do what ``submit`` does."""
    lines = [f"  cd {shlex.quote(str(folder))}"]
    if plan.cluster.slurm_conf:
        lines.append(f"  export SLURM_CONF={shlex.quote(plan.cluster.slurm_conf)}")
    for stage in plan.stages:
        script = f"scripts/{stage.name}.sbatch"
        if plan.cluster.scheduler == "local":
            lines.append(f"  bash {script}{' &' * (stage.name == 'serve')}")
            continue
        conditions = ",".join(f"{item.kind}:${item.stage}" for item in stage.after)
        option = f" --kill-on-invalid-dep=yes --dependency={conditions}" if conditions else ""
        lines.append(f"  {stage.name}=$(sbatch --parsable{option} {script})")
    return "\n".join(lines)
