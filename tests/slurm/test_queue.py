"""A run that waits in a real queue, runs, and is told with what it has used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.schemas.check import documented
from tests.slurm.conftest import Person
from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.scheduler.states import REASONS

pytestmark = [pytest.mark.slurm, pytest.mark.thorough]


def serve_of(person: Person, run: RunPaths) -> dict[str, Any]:
    stages = {stage["stage"]: stage for stage in person.status(run)["stages"]}
    found: dict[str, Any] = stages["serve"]
    return found


def listed(person: Person, run: RunPaths) -> dict[str, Any]:
    answer = person.types("runs", "--runs", run.folder.parent, "--json")
    assert answer.returncode == 0, answer.stderr
    [row] = [row for row in documented("runs", answer.stdout) if row["run_id"] == run.run_id]
    found: dict[str, Any] = row
    return found


def test_a_waiting_run_shows_its_expected_start_and_use(person: Person, engine_alone: Path) -> None:
    blocker = person.slurm(
        *("sbatch", "--parsable", "--nodes=4", "--gpus-per-node=4", "--time=5"),
        *("--output=/dev/null", "--wrap=sleep 300"),
    ).strip()
    engine = {"directory": str(engine_alone)}
    serve = {"proxy": "none", "cpus_per_rank": 1}
    companion = {"request": {"max_tokens": 4}, "benchmark": None}
    job = person.job("queued", engine=engine, serve=serve, companion=companion)
    # What sbatch must read as the keys mean it: all memory of the node, and no other user's job on it.
    whole = ("--set", "serve.memory_gib_per_node=all", "--set", "cluster.exclusive=user")
    second = ("--set", "cluster.gres=[scratch:10]")
    _, run = person.submit(job, "--set", "cluster.gpu_request=gres", *whole, *second, wait=False)
    reasons = {f"waits in the queue: {REASONS[reason]}" for reason in ("Resources", "Priority")}
    assert eventually(lambda: serve_of(person, run)["sentence"] in reasons, 30)
    assert eventually(lambda: serve_of(person, run)["times"]["expected_at"], 30), "no expected start"
    assert serve_of(person, run)["times"]["submitted_at"]
    assert "expected to start" in person.types("status", run.folder).stdout
    assert listed(person, run)["state"] == "pending"
    person.slurm("scancel", blocker)
    watched = person.types("watch", run.folder)
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert "serve: has completed" in watched.stderr
    told = serve_of(person, run)
    shown = person.slurm("scontrol", "show", "job", told["job_id"])
    assert "OverSubscribe=USER" in shown and re.search(
        r"TresPerNode=gres[:/]gpu:\d,gres[:/]scratch:10\b", shown
    )
    accounted = person.slurm(
        *("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={told['job_id']}"),
        "--format=ElapsedRaw,AllocTRES",
    )
    elapsed, tres = accounted.strip().split("|")
    gpus = next(int(one.partition("=")[2]) for one in tres.split(",") if one.startswith("gres/gpu="))
    assert told["gpus"] == gpus and told["waited_s"] > 0
    assert told["gpu_hours"] == pytest.approx(float(elapsed) * gpus / 3600) and told["gpu_hours"] > 0
    row = listed(person, run)
    assert (row["state"], row["settled"]) == ("completed", True)
    assert row["gpu_hours"] == pytest.approx(told["gpu_hours"])
    assert run.ended.exists(), "it was not remembered"
