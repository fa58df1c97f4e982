"""``trtllm-hpc render``: write a run folder without submitting it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from trtllm_hpc.cli.options import job_options, json_option, print_json, print_warning
from trtllm_hpc.engine_cache.lookup import CachedEngine
from trtllm_hpc.logs.snapshot import readable_plan
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.report.engines import engine_lines


@dataclass(frozen=True)
class RenderedRun:
    """A run folder with its scripts; nothing is submitted."""

    run_id: str
    folder: str
    """The run folder."""
    scripts: tuple[str, ...]
    """Paths of the sbatch scripts, in the order of submission."""
    engine: CachedEngine | None
    """What the cache has; ``None`` for a run that needs no engine from it."""


@click.command("render")
@job_options
@json_option
def command(
    job_file: Path, cluster: str, settings: tuple[str, ...], runs: Path | None, as_json: bool
) -> None:
    """Write the run folder of JOB with all its scripts; submit nothing.

    Needs no Slurm on this machine. The scripts are those that `submit` would
    submit, byte for byte. Of disaggregated serving, notes say which server
    gets which nodes and GPUs.

    \b
    Examples:
      trtllm-hpc render job.yaml --cluster pyxis
      trtllm-hpc render qwen3-8b --cluster pyxis --set model.path=/scratch/models/Qwen3-8B
      trtllm-hpc render job.yaml --set serve.nodes=2 --runs /scratch/$USER/runs
    """
    from trtllm_hpc.api.jobs import render

    run = render(job_file, cluster, settings, runs, on_warning=print_warning)
    if as_json:
        files = tuple(str(file) for file in run.scripts)
        print_json(RenderedRun(run.id, str(run.folder), files, run.engine))
        return
    click.echo(f"rendered {run.folder}")
    for script in run.scripts:
        click.echo(f"  {script.relative_to(run.folder)}")
    for line in engine_lines(run.engine):
        click.echo(line)
    click.echo("\nTo submit by hand, in this order:")
    click.echo(by_hand(run.paths))


def by_hand(paths: RunPaths) -> str:
    """Return the commands that do what ``submit`` does."""
    plan = readable_plan(paths)
    lines = [f"  cd {shlex.quote(str(paths.folder))}"]
    if plan.slurm_conf:
        lines.append(f"  export SLURM_CONF={shlex.quote(plan.slurm_conf)}")
    for stage in plan.stages:
        script = f"scripts/{stage.name}.sbatch"
        if plan.scheduler == "local":
            lines.append(f"  bash {script}{' &' * (stage.name == 'serve')}")
            continue
        conditions = ",".join(f"{it.kind}:${it.stage}" for it in stage.after)
        option = f" --kill-on-invalid-dep=yes --dependency={conditions}" if conditions else ""
        lines.append(f"  {stage.name}=$(sbatch --parsable{option} {script})")
    return "\n".join(lines)
