"""Sweeps on a real Slurm: killed, cancelled and resumed; in lanes and in one job."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.schemas.check import documented
from tests.slurm.conftest import Person
from tests.slurm.test_backbone import LENIENT, one_rank
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.sweeps.record import SweepPaths, find_sweep

pytestmark = pytest.mark.slurm

SHORT = {"requests": 12, "concurrencies": [2], "max_tokens": 4, "warmup_requests": 0}


def job(person: Person, engine: Path, name: str, sweep: dict[str, Any]) -> Path:
    """Write a job file with a section ``sweep``."""
    sections = one_rank(engine, model={"synthetic": "stand-in"})
    benchmark = {**SHORT, **LENIENT, "min_window_seconds": 0.001}
    sections["companion"] = {"request": {"max_tokens": 4}, "benchmark": benchmark}
    return person.job(name, **sections, sweep=sweep)


def status(person: Person, sweep: SweepPaths) -> dict[str, Any]:
    """``trtllm-hpc sweep status --json``, by the name of the variant."""
    answer = person.types("sweep", "status", sweep.folder, "--json")
    assert answer.returncode == 0, answer.stderr
    return {it["name"]: it for it in documented("sweep status", answer.stdout)["variants"]}


def chains(person: Person, sweep: SweepPaths, names: list[str]) -> list[tuple[float, float]]:
    """Return when the first job of each variant began and when its last one ended, by Slurm's accounting."""
    jobs = {
        name: [it["job_id"] for it in json.loads(sweep.run(name).jobs.read_text())["stages"].values()]
        for name in names
    }
    columns = "--format=JobID,Start,End"
    shown = person.slurm(
        "env", "SLURM_TIME_FORMAT=%s", "sacct", "--noheader", "--parsable2", "--allocations", columns
    )
    rows = {row.split("|")[0]: row.split("|")[1:] for row in shown.splitlines()}
    spans = {name: [rows[it] for it in its] for name, its in jobs.items()}
    return [(min(float(s) for s, _ in its), max(float(e) for _, e in its)) for its in spans.values()]


def most_at_once(spans: list[tuple[float, float]]) -> int:
    """Return how many spans overlap at most; Slurm's times are whole seconds."""
    return max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans)


@pytest.mark.thorough
def test_a_sweep_outlives_its_command_and_goes_on(person: Person, engine_alone: Path) -> None:
    grid = {"serve.instances": [1, 2], "companion.request.max_tokens": [2, 3]}
    file = job(person, engine_alone, "settings", {"grid": grid, "max_running": 2})
    with person.command("trtllm-hpc", "sweep", file, "--cluster", person.profile) as submitting:
        assert submitting.stdout is not None
        for line in submitting.stdout:
            if "submitted 2 of 4" in line:
                submitting.send_signal(signal.SIGKILL)
                break
        else:
            raise AssertionError(submitting.communicate()[1])
    sweep = find_sweep("settings", person.folder / "runs")
    unsubmitted = [it for it in status(person, sweep).values() if it["state"] in ("rendered", "failed")]
    assert unsubmitted
    resumed = person.types("sweep", "resume", sweep.folder)
    assert resumed.returncode == 0, resumed.stderr
    [*_, last] = names = [*status(person, sweep)]
    assert names == ["x1-max-tokens2", "x1-max-tokens3", "x2-max-tokens2", "x2-max-tokens3"]
    cancelled = person.types("sweep", "cancel", sweep.folder, last)
    assert cancelled.returncode == 0, cancelled.stderr
    watched = person.types("sweep", "watch", sweep.folder)
    assert watched.returncode == ExitCode.CANCELLED, watched.stdout + watched.stderr
    states = {name: it["state"] for name, it in status(person, sweep).items()}
    assert states == {**dict.fromkeys(names, "completed"), last: "cancelled"}
    assert most_at_once(chains(person, sweep, names[:3])) <= 2
    person.has_nothing_left()


def test_one_job_serves_all_variants_and_a_broken_one_stops_no_other(
    person: Person, engine_alone: Path
) -> None:
    copy = shutil.copytree(engine_alone, person.folder / "copy of an engine")
    broken = {"engine": {"directory": str(copy)}}
    variants = {"first": {}, "broken": broken, "two": {"serve": {"instances": 2}}, "third": {}}
    file = job(person, engine_alone, "in-one", {"variants": variants, "allocation": "one"})
    begun = person.types("sweep", file, "--cluster", person.profile)
    assert begun.returncode == 0, begun.stderr
    shutil.rmtree(copy)
    assert len(person.jobs_in_queue()) == 1
    sweep = find_sweep("in-one", person.folder / "runs")
    assert eventually(lambda: status(person, sweep)["two"]["state"] in ("running", "serving"), 60)
    cancelled = person.types("sweep", "cancel", sweep.folder, "third")
    assert cancelled.returncode == 0, cancelled.stderr
    watched = person.types("sweep", "watch", sweep.folder)
    assert watched.returncode == ExitCode.START, watched.stdout + watched.stderr
    found = status(person, sweep)
    states = {name: it["state"] for name, it in found.items()}
    assert states == {"first": "completed", "broken": "failed", "two": "completed", "third": "cancelled"}
    assert str(copy) in found["broken"]["sentence"], found["broken"]
    person.has_nothing_left()
