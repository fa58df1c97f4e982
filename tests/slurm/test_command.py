"""A server by its own command on a real cluster: ``transformers serve``, and commands that cannot serve."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import FEW, Person, bare_server, user_processes
from tests.upstream.transformers_serve import make_model
from trtllm_hpc.bench.results import read_measurement
from trtllm_hpc.paths import COMPANION_MEASUREMENT
from trtllm_hpc.runtime.records import Endpoint

pytestmark = pytest.mark.slurm

SERVE = [str(Path(sys.executable).with_name("transformers")), "serve", "{model}", "--device", "cpu"]


def job_file(person: Person, name: str, command: list[str], **serve: Any) -> Path:
    model = person.folder / "model"
    if not model.exists():
        make_model(model)
        subprocess.run(["chown", "-R", f"--reference={person.folder}", model], check=True)
    return person.job(
        name,
        model={"path": str(model)},
        engine={"backend": "command"},
        serve={"command": command, "environment": {"HF_HUB_OFFLINE": "1"}, **serve},
        companion={"request": {"prompt": "the river", "max_tokens": 5}, "benchmark": FEW},
    )


def test_a_server_of_another_kind_is_served_measured_and_ended(person: Person) -> None:
    job = job_file(person, "hf", [*SERVE, "--host", "{address}", "--port", "{port}"])
    _, run = person.submit(job)
    measured = read_measurement(run.measurement(COMPANION_MEASUREMENT).summary)
    [only] = measured.levels[0].passes
    assert (measured.protocol, only.measured, only.failed) == ("openai", 12, 0)
    assert Endpoint.read(run.endpoint) is None
    person.has_nothing_left()


def test_a_head_and_workers_with_commands_of_their_own_serve_over_two_nodes(person: Person) -> None:
    """As vLLM over Ray: the head's daemon has a session of its own, and the worker would never end."""
    program = shutil.copy(Path(__file__).with_name("ray_cluster.py"), person.folder)
    ray, made = shlex.join([sys.executable, str(program)]), bare_server(person.folder, "0")
    meet = "{leader_address}:{leader_port}"
    starts = f'{ray} head {{leader_port}} && {ray} wait {meet} 2 && exec "$@"'
    made["serve"] = {
        "command": ["bash", "-c", starts, "--", *made["serve"]["command"]],
        "worker_command": ["bash", "-c", f"exec {ray} join {meet}"],
        "nodes": 2,
    }
    made["engine"]["tensor_parallel"] = 2
    made["companion"] = {"request": {"max_tokens": 1}, "benchmark": None}
    _, run = person.submit(person.job("ray", **made))
    assert {person.rank(run, rank).host for rank in (0, 1)} == {
        node.name for node in person.sandbox.nodes[:2]
    }
    person.has_nothing_left()


def test_commands_before_the_server_reach_it_or_are_named(person: Person) -> None:
    given = {"prologue": ["export GIVEN='by a \"line\"'"], "wrapper": ["env", "WRAPPED=1"]}
    run = person.serves(person.job("prologue", **bare_server(person.folder, **given)))
    processes = [process for node in person.sandbox.nodes for process in user_processes(node)]
    server = next(it.pid for it in processes if Path(*it.arguments[1:2]).name == "bare_server.py")
    variables = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
    assert {b'GIVEN=by a "line"', b"WRAPPED=1"} <= set(variables)
    person.cancel(run)
    given = {"prologue": ["true", "cat /nowhere/engine.whl"]}
    job = person.job("refused", **bare_server(person.folder, **given))
    _, run = person.submit(job, wait=False)
    why = "serve.prologue[1] failed (exit code 1): cat /nowhere/engine.whl"
    assert why in person.failed(run, 60)["sentence"]
    person.has_nothing_left()
