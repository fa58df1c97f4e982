"""The engine cache on a real Slurm: builds that race, and builds that are killed at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import Person, user_processes
from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import read_events
from trtllm_hpc.sandbox import Node

pytestmark = pytest.mark.slurm

VICTIMS = ["runtime", "builder", "everything", "slurmstepd"]
"""The last leaves the step's processes to nobody: they build on, and the next submit waits for them."""


def one_rank(**more: Any) -> dict[str, Any]:
    """Sections of a job file whose engine goes into a cache of the test's own."""
    sections: dict[str, Any] = {
        "engine": {"tensor_parallel": 1},
        "repository": {"bls_instances": 1},
        "build": {"cpus": 1},
        "serve": {"cpus_per_rank": 1, "ready_timeout_seconds": 120},
        "companion": {"request": {"max_tokens": 4}, "benchmark": None},
    }
    for section, values in more.items():
        sections[section] = {**sections.get(section, {}), **values}
    return sections


def states(run: RunPaths) -> list[str]:
    """What became of the run's build step, in order."""
    return [event.data["state"] for event in read_events(run, "build") if "state" in event.data]


def is_building(run: RunPaths) -> bool:
    return "building" in states(run)


def assert_clean(person: Person, count: int) -> None:
    """Every entry is whole to the last byte, and nothing else is left."""
    checked = person.types("engines", "verify", "--cluster", person.profile)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    listed = json.loads(person.types("engines", "list", "--cluster", person.profile, "--json").stdout)
    assert [item["state"] for item in listed] == ["whole"] * count
    for item in listed:
        names = {path.name.split(".")[0] for path in Path(item["folder"]).parent.iterdir()}
        assert names <= {"key", "lock", "output", "used", "uses"}, names


def kill(node: Node, victim: str) -> list[int]:
    """kill -9 one part of the build that runs on a node; the processes that were hit."""
    mine = user_processes(node)
    steps = [it for it in node.processes() if it.arguments[0].startswith("slurmstepd:")]
    chosen = {
        "runtime": [it for it in mine if "python" in it.arguments[0] and it.arguments[-1] == "engine"],
        "builder": [it for it in mine if "trtllm_hpc.reference.build" in it.arguments],
        "everything": mine,
        "slurmstepd": [it for it in steps if ".0]" in it.arguments[0]],
    }[victim]
    for process in chosen:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return [process.pid for process in chosen]


def kill_once(person: Person, job: Path, node: Node, victim: str, moment: float) -> RunPaths:
    """Submit, and kill so many seconds after the build began."""
    _, run = person.submit(job, "--set", f'cluster.sbatch_options=["--nodelist={node.name}"]', wait=False)
    assert eventually(partial(is_building, run), 30), person.status(run)
    time.sleep(moment)
    done = run.engine.is_symlink()
    hit = kill(node, victim)
    print(f"{victim} on {node.name} after {moment:.2f} s: {hit} of {run.run_id}, {states(run)}")
    assert hit or done, run.rank_log("build", 0).read_text()
    person.slurm("scancel", "--me")
    person.has_nothing_left()
    return run


@pytest.mark.thorough
def test_a_build_killed_at_any_moment_is_finished_by_the_next_submit(person: Person) -> None:
    """On either node, whatever part of it is killed.

    tests/runtime/engine_cache/test_build.py kills without Slurm.
    """
    chance = random.Random()
    batch, begun = 0, False
    for number, victim in enumerate(VICTIMS):
        if not begun:
            batch, begun = batch + 1, True
            job = person.job("killed", **one_rank(engine={"max_batch_size": batch}))
        node = person.sandbox.nodes[number % 2]
        run = kill_once(person, job, node, victim, chance.uniform(0, 3))
        begun = not run.engine.is_symlink()
        if not begun:
            assert_clean(person, batch)
    finish(person, job)
    assert_clean(person, batch)


def finish(person: Person, job: Path) -> None:
    """The next submit, to the end of everything."""
    _, run = person.submit(job)
    assert run.engine.is_symlink(), person.status(run)
