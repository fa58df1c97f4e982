from __future__ import annotations

import hashlib
import socket
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.runs.made import submitted, written
from tests.runtime.engine_cache.builds import Run, make_model, make_run, recipe
from trtllm_hpc.bench.provenance import provenance, workload_provenance
from trtllm_hpc.config.files import read_spec
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.render.run_folder import runtime_zipapp
from trtllm_hpc.runtime.records import Endpoint, RankRecord

ENDPOINT = Endpoint("12", "gpu01", "10.0.0.1", 8000, 8001, 8002, ["ensemble"], 1.0, {"load": 2.5})


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A submitted run; nothing of it has begun."""
    return submitted(tmp_path / "my run", {"build": "11", "serve": "12", "companion": "13"})


def found_in(paths: RunPaths, endpoint: Endpoint = ENDPOINT) -> dict[str, Any]:
    return provenance(paths, endpoint, read_spec(paths.spec))


def add_rank(paths: RunPaths, rank: int, host: str) -> None:
    details = {
        "gpus": ["0", "1"],
        "gpu_models": ["NVIDIA H200, 570.86, 143771 MiB"] * 2,
        "mpi_library": "MPI",
    }
    for step in ("preflight", "serve"):
        record = RankRecord(step, rank, 2, "12", host, 1, 0.0, details=details if step == "preflight" else {})
        record.write(paths.rank_record(step, rank))


def test_the_run_has_its_jobs(run: RunPaths) -> None:
    found = found_in(run)["run"]
    assert found["id"] == run.run_id
    assert found["jobs"] == {"build": "11", "serve": "12", "companion": "13"}


def test_the_server_has_its_ranks_and_its_image(tmp_path: Path) -> None:
    container = {"runtime": "apptainer", "image": "/images/triton.sif"}
    _, paths = written(
        tmp_path / "run", {"engine": {"tensor_parallel": 2}}, gpus_per_node=1, container=container
    )
    add_rank(paths, 0, "gpu01")
    add_rank(paths, 1, "gpu02")
    found = found_in(paths)["server"]
    assert (found["job_id"], found["host"], found["world_size"]) == ("12", "gpu01", 2)
    assert found["nodes"] == ["gpu01", "gpu02"]
    assert found["ranks"][1]["gpu_models"] == ["NVIDIA H200, 570.86, 143771 MiB"] * 2
    assert (found["cluster"], found["container"], found["image"]) == (
        "here",
        "apptainer",
        "/images/triton.sif",
    )


def test_what_a_rank_found_is_that_of_its_host(tmp_path: Path) -> None:
    _, paths = written(tmp_path / "run", {"engine": {"tensor_parallel": 2}}, gpus_per_node=1)
    for rank, (before, serving) in enumerate([("n1", "n2"), ("n2", "n1")]):
        found = {"gpu_models": [f"GPU of {before}"]}
        for step, host, details in (("preflight", before, found), ("serve", serving, {})):
            record = RankRecord(step, rank, 2, "12", host, 1, 0.0, details=details)
            record.write(paths.rank_record(step, rank))
    ranks = found_in(paths)["server"]["ranks"]
    assert [(rank["host"], rank["gpu_models"]) for rank in ranks] == [
        ("n2", ["GPU of n2"]),
        ("n1", ["GPU of n1"]),
    ]


def test_the_engine_is_that_of_the_cache(tmp_path: Path) -> None:
    made = recipe(tmp_path / "engines", make_model(tmp_path / "model"))
    built: Run = make_run(tmp_path / "run", made, runtime_zipapp())
    code, words = built.build()
    assert code == 0, words
    found = provenance(built.paths, ENDPOINT, JobFile(name="demo"))["engine"]
    assert found["key"].startswith(built.entry().name.removeprefix("build-"))
    assert found["layout"] == "tp 2"


def test_an_engine_that_somebody_brought_has_only_its_folder(run: RunPaths, tmp_path: Path) -> None:
    (tmp_path / "brought").mkdir()
    run.engine.symlink_to(tmp_path / "brought")
    found = found_in(run)["engine"]
    assert found["folder"] == str(tmp_path / "brought") and "key" not in found
    assert found["backend"] == "reference" and found["model"] == "tiny-llama"


def test_the_client_has_its_host_and_packages(run: RunPaths) -> None:
    found = found_in(run)["client"]
    assert found["host"] == socket.gethostname() and found["cpus"] >= 1 and found["cpu"]
    assert found["packages"]["numpy"] == metadata.version("numpy")
    assert found["packages"]["tritonclient"] == metadata.version("tritonclient")


def test_the_workload_has_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "benchmark.workload.jsonl"
    file.write_text("{}\n")
    assert workload_provenance(file) == {
        "file": "benchmark.workload.jsonl",
        "sha256": hashlib.sha256(b"{}\n").hexdigest(),
    }
