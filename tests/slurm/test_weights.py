"""Weights on the nodes' own disks (``model.stage: node``), and a hub's model downloaded by a job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runs.hub import TOKEN, Hub, HubServer
from tests.slurm.conftest import Person
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode

pytestmark = [pytest.mark.slurm, pytest.mark.thorough]

FILES = {"config.json": b"{}", "model.safetensors": b"weights!" * (5 * 2**17)}


def staged(person: Person) -> Path:
    folder = person.folder / "plain"
    folder.mkdir()
    for file, content in FILES.items():
        (folder / file).write_bytes(content)
    return served(person, "staged", {"path": str(folder), "stage": "node"})


def served(person: Person, name: str, model: dict[str, str]) -> Path:
    """A job whose server only looks for its model; each test ends it."""
    words = ["sh", "-c", 'test -s "$0/config.json" && exec sleep 60', "{model}", "{port}", "{node_rank}"]
    return person.job(
        name,
        model=model,
        engine={"backend": "command", "tensor_parallel": 2},
        serve={"command": words, "nodes": 2, "keep_running": True},
        companion={"enabled": False},
    )


def copied(person: Person, job: Path) -> list[str]:
    """Return what each node says at the end of its copying, once the server's ranks have begun."""
    _, run = person.submit(job, wait=False)
    assert eventually(lambda: run.rank_record("serve", 1).exists(), 60), person.status(run)
    said = [run.rank_log("staging", number).read_text().splitlines()[-1] for number in (0, 1)]
    person.cancel(run)
    return [line.partition(": ")[2] for line in said]


def test_each_node_copies_once_and_a_small_disk_is_named(person: Person) -> None:
    small = "/dev/shm/small"
    person.profile.write_text(person.profile.read_text() + "\nnode_models_folder: /dev/shm/models\n")
    job = staged(person)
    assert copied(person, job) == ["2 of 2 files were copied"] * 2
    assert copied(person, job) == ["0 of 2 files were copied"] * 2
    for node in person.sandbox.nodes:
        node.run(["mkdir", "-p", small])
        node.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=1777", "none", small])
    settings = ["--set", f"cluster.node_models_folder={small}"]
    _, refused = person.submit(job, *settings, exit_code=ExitCode.START)
    assert re.search(rf"free in {small}, and the model needs", person.status(refused)["sentence"])
    assert not list(refused.ranks.glob("serve_*"))
    for node in person.sandbox.nodes:
        node.run(["umount", small])


def test_a_job_downloads_a_hubs_model_and_says_why_it_cannot(person: Person) -> None:
    layout = person.sandbox.layout
    assert layout is not None
    hub = Hub({**FILES, "tokenizer.json": b"{}"}, gated=True)
    server = HubServer(hub, f"{layout.subnet}.254")
    partition = re.search(r"(?m)^PartitionName=(\S+)", Path(person.sandbox.slurm_conf).read_text())
    assert partition
    token = person.folder / "token"
    token.write_text(TOKEN)
    job = served(person, "hub", {"hub": "org/tiny", "token_file": str(token)})
    words = ["--set", f"cluster.download_partition={partition[1]}"]
    words += ["--set", f"cluster.models_folder={person.folder}/models"]
    person.environment["HF_ENDPOINT"] = server.url
    try:
        hub.wrong.add("model.safetensors")
        _, run = person.submit(job, *words, wait=False)
        assert eventually(lambda: person.status(run)["state"] == "failed", 60), person.status(run)
        assert "model.safetensors" in person.status(run)["sentence"], person.status(run)
        assert not run.rank_record("serve", 1).exists()
        hub.wrong.clear()
        assert person.types("resume", run.folder).returncode == 0
        assert eventually(lambda: run.rank_record("serve", 1).exists(), 60), person.status(run)
        person.cancel(run)
        assert not any(TOKEN.encode() in it.read_bytes() for it in run.folder.rglob("*") if it.is_file())
    finally:
        server.shutdown()
        server.server_close()
