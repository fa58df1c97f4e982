"""The network between four nodes on a real Slurm: packets lost between two nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sharing import sandbox_name
from tests.slurm.conftest import Person
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.sandbox import Sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.thorough]

NODE = ["{node_rank}", "{leader_address}", "{leader_port}", "{port}"]
SERVES = {"command": ["bash", "-c", "sleep 600", *NODE], "memory_gib_per_node": 1, "cpus_per_rank": 1}
NOBODY = "02:00:00:00:00:99"
"""A hardware address that no interface has: frames to it are lost."""


@pytest.fixture
def four(person: Person, home: Path) -> Iterator[Person]:
    """The ordinary user in front of four nodes."""
    sandbox = Sandbox(sandbox_name("net"))
    sandbox.up(4, 4)
    profile = home / "four.yaml"
    profile.write_text(
        person.profile.read_text().replace(str(person.sandbox.slurm_conf), str(sandbox.slurm_conf))
    )
    yield replace(person, sandbox=sandbox, profile=profile)
    sandbox.down()


def job_file(person: Person) -> Path:
    model = person.folder / "a model of four"
    if not model.exists():
        model.mkdir()
        (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    engine = {"backend": "command", "tensor_parallel": 4}
    serve = {**SERVES, "nodes": 4}
    words = {"engine": engine, "serve": serve, "companion": {"enabled": False}}
    return person.job("net", model={"path": str(model)}, **words)


def test_lost_packets_between_two_nodes_are_named(four: Person) -> None:
    names, addresses = zip(*((node.name, node.address) for node in four.sandbox.nodes), strict=True)
    lost = ["ip", "neigh", "replace", addresses[1], "lladdr", NOBODY, "dev", "eth0", "nud", "permanent"]
    four.sandbox.nodes[2].run(lost)
    said, _ = four.submit(job_file(four), "--ignore", "model-files", exit_code=ExitCode.START)
    assert f"{names[1]} and {names[2]} cannot talk over TCP" in said, said
