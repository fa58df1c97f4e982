"""The network between four nodes on a real Slurm: a slow link, and packets lost between two nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sharing import sandbox_name
from tests.slurm.conftest import Person
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.sandbox import Sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.thorough]

NODE = ["{node_rank}", "{leader_address}", "{leader_port}", "{port}"]
SERVES = {"command": ["bash", "-c", "sleep 600", *NODE], "memory_gib_per_node": 1, "cpus_per_rank": 1}
ONLY_THERE = """\
qdisc add dev eth0 root handle 1: htb default 1
class add dev eth0 parent 1: classid 1:1 htb rate 30gbit quantum 60000
class add dev eth0 parent 1: classid 1:2 htb rate 30gbit quantum 60000
qdisc add dev eth0 parent 1:2 handle 2: tbf rate 100mbit burst 64kb latency 50ms
filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst {}/32 flowid 1:2
"""
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


def job_file(person: Person, **preflight: object) -> Path:
    model = person.folder / "a model of four"
    if not model.exists():
        model.mkdir()
        (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    engine = {"backend": "command", "tensor_parallel": 4}
    serve = {**SERVES, "nodes": 4}
    words = {"engine": engine, "serve": serve, "companion": {"enabled": False}, "preflight": preflight}
    return person.job("net", model={"path": str(model)}, **words)


def refused(person: Person, **preflight: object) -> tuple[str, RunPaths]:
    """Return what was said of a run that its preflight has ended."""
    return person.submit(job_file(person, **preflight), "--ignore", "model-files", exit_code=ExitCode.START)


def test_a_slow_link_and_lost_packets_between_two_nodes_are_named(four: Person) -> None:
    names = [node.name for node in four.sandbox.nodes]
    third = four.sandbox.nodes[2]
    addresses = [node.address for node in four.sandbox.nodes]
    third.run(["sh", "-c", f"echo '{ONLY_THERE.format(addresses[0])}' | tc -batch -"])
    said, slow = refused(four, minimum_gb_per_s=0.02)
    record = json.loads(slow.network.read_text())
    assert record["seconds"] < 5 and len(record["links"]) == 6
    [sentence] = record["said"]
    assert sentence.startswith(f"{names[2]}: 0.01 GB/s to {names[0]}, others"), sentence
    assert sentence in slow.network_table.read_text()
    assert f"The network of {names[2]} is slower than preflight.minimum_gb_per_s (0.02)" in said
    third.run(["tc", "qdisc", "del", "dev", "eth0", "root"])

    third.run(["ip", "neigh", "replace", addresses[1], "lladdr", NOBODY, "dev", "eth0", "nud", "permanent"])
    said, lost = refused(four)
    assert f"{names[1]} and {names[2]} cannot talk over TCP" in said, said
    record = json.loads(lost.network.read_text())
    assert record["seconds"] < 10  # one pair has waited 2.5 s
    assert [link["pair"] for link in record["links"] if link["error"]] == [[1, 2]]
