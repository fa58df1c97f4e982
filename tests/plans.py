"""Plans of runs that a test makes without rendering."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.plan_record import PlanRecord, Resources, Stage

PLAN = PlanRecord(
    name="demo",
    run_folder="/runs/demo",
    python="python3",
    scheduler="slurm",
    slurm_conf=None,
    model=None,
    release=None,
    engine_folder="/engines/demo",
    engine_found=None,
    causes_folder=None,
    stops_server=True,
    world_sizes=(1,),
    gpus_per_node=0,
    stages=(),
)


def planned_stage(name: str, *, nodes: int = 1, tasks: int = 1, gpus_per_node: int = 0) -> Stage:
    """A stage of the job ``demo``."""
    asked = Resources(nodes, tasks, None, cpus_per_task=1, minutes=10, gpus_per_node=gpus_per_node)
    return Stage(name, f"demo-{name}", f"/runs/demo/logs/{name}.out", (asked,))


def write_plan(paths: RunPaths, **facts: Any) -> None:
    """Write a plan with these facts; with it the folder is a run."""
    replace(PLAN, run_folder=str(paths.folder), **facts).write(paths)
