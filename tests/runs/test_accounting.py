"""What a run has used: from Slurm's accounting, or from its own events."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.typed import Types
from tests.cli.typed import home as home
from tests.cli.typed import types as types
from tests.runs.made import submitted, written
from tests.scheduler.fake_slurm import FakeSlurm
from tests.schemas.check import documented
from trtllm_hpc.logs.snapshot import readable_plan
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.scheduler.submission_record import SubmissionRecord


def add(paths: RunPaths, stage: str, *marks: tuple[float, str], job_id: str = "") -> None:
    """Write events of a stage at these seconds."""
    paths.events.mkdir(exist_ok=True, parents=True)
    with paths.stage_events(stage).open("a") as file:
        for second, name in marks:
            data = {"exit_code": 0, "job_id": job_id}
            file.write(json.dumps({"time": second, "stage": stage, "name": name, "data": data}) + "\n")


def with_gpus(paths: RunPaths, **gpus: int) -> RunPaths:
    """The plan of a run, changed so that its stages have GPUs."""
    plan = readable_plan(paths)
    stages = [
        replace(stage, components=(replace(stage.first, gpus_per_node=gpus.get(stage.name, 0)),))
        for stage in plan.stages
    ]
    replace(plan, stages=tuple(stages)).write(paths)
    return paths


def uses(types: Types) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """What ``status --json`` says of each stage, and of what the run has used."""
    record = documented("status", types("status", "demo", "--json").output)
    return {stage["stage"]: stage for stage in record["stages"]}, record["use"]


def test_accounting_tells_gpu_hours_waiting_and_energy(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    jobs = {
        "build": fake_slurm.add(
            "COMPLETED", nodes="n1", submitted=1000, started=1600, ends=3400, given="cpu=4,gres/gpu=1"
        ),
        "serve": fake_slurm.add(
            *("COMPLETED",), nodes="n[1-2]", submitted=1001, started=4000, ends=11200, energy=7_200_000,
            given="billing=8,cpu=8,gres/gpu=8,gres/gpu:h100=8",
        ),
        "companion": fake_slurm.add("COMPLETED", nodes="n1", submitted=1002, started=4000, ends=4100),
    }  # fmt: skip
    fake_slurm.assign(submitted(home / "runs" / "demo-1", jobs), jobs)
    stages, run = uses(types)
    assert (stages["serve"]["gpu_hours"], stages["serve"]["energy_j"]) == (16.0, 7_200_000.0)
    used = {"gpu_hours": 16.5, "energy_j": 7_200_000.0}
    assert run == {**used, "server_mean_w": None, "server_peak_w": None}
    used_words = "used: 16.5 GPU-hours (build 0.5, serve 16.0), 2.00 kWh measured by Slurm"
    assert used_words in types("status").output


def test_without_slurm_the_runs_own_events_tell(home: Path, types: Types) -> None:
    _, paths = written(home / "runs" / "demo-1", scheduler="local", partition=None)
    with_gpus(paths, serve=2)
    record = SubmissionRecord("local", complete=True)
    begun = time.time()
    for stage in ("build", "serve", "companion"):
        record.add(paths, stage, "999999")
        add(paths, stage, (begun, "stage_begin"), (begun + 3600, "stage_end"), job_id="local77")
    stages, run = uses(types)
    assert (stages["serve"]["gpu_hours"], run["gpu_hours"], run["energy_j"]) == (2.0, 2.0, None)


def test_earlier_attempts_and_servers_before_a_renewal_count(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    now = int(time.time())
    serve = fake_slurm.add("COMPLETED", nodes="n1", submitted=now, started=now, ends=now + 3600)
    paths = with_gpus(submitted(home / "runs" / "demo-1", {"serve": serve}), serve=2)
    fake_slurm.assign(paths, {"serve": serve})
    add(paths, "serve", (now - 3599.5, "stage_begin"), (now + 0.5, "stage_end"), job_id="7")
    add(paths, "serve", (now + 1, "stage_begin"), (now + 3600, "stage_end"), job_id=serve)
    killed, ended = (RunPaths(paths.attempts / number) for number in "12")
    for attempt in (killed, ended):
        attempt.folder.mkdir(parents=True)
    add(killed, "serve", (1000.0, "stage_begin"), (2800.0, "ready"))
    add(ended, "serve", (4000.0, "stage_begin"), (7600.0, "stage_end"))
    stages, run = uses(types)
    assert stages["serve"]["gpu_hours"] == 2.0
    assert run["gpu_hours"] == pytest.approx(2.0 + 2.0 + 1.0 + 2.0)
    listed = documented("runs", types("runs", "--json").output)
    assert listed[0]["gpu_hours"] == run["gpu_hours"]


def test_a_rendered_run_has_used_nothing(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    written(home / "runs" / "demo-1")
    assert set(uses(types)[1].values()) == {None}
    assert "used:" not in types("status", "demo").output
