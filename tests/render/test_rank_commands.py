"""The exact command line of each rank's server in each mode, from running ``rank.sh`` itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.render.cases import CASES, plan_of
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.render.scripts import render_scripts
from trtllm_hpc.runtime.node import shm_prefix
from trtllm_hpc.runtime.server_spec import RankOptions, read_spec
from trtllm_hpc.runtime.servers import start_command

_SHOWS = """#!/usr/bin/env python3
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ.get("CUDA_VISIBLE_DEVICES")]))
"""

LEADER = ["--http-port=1", "--grpc-port=2", "--metrics-port=3"]
LOOPBACK = ["--http-address=10.0.0.1", "--grpc-address=10.0.0.1", "--metrics-address=10.0.0.1"]
SOCKETS = [f"--{kind}-address=unix:SOCKETS/{kind}" for kind in ("http", "grpc", "metrics")]
CLOSED = ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"]
WORKER = ["--model-control-mode=explicit", "--load-model=tensorrt_llm", *CLOSED]
NO_GPUS = ["--allow-gpu-metrics=false"]

TABLE: list[tuple[str, int, int, str, list[str], str | None]] = [
    # case, instance, rank -> shared memory, options after those that all have, GPUs
    ("sandbox-two-ranks", 0, 0, "trt7_0_0_", SOCKETS, "4,5,6,7"),
    ("sandbox-two-ranks", 0, 1, "trt7_0_1_", WORKER, "4,5,6,7"),
    ("local", 0, 0, "trt7_0_0_", [*NO_GPUS, *LEADER, *LOOPBACK], "4,5,6,7"),
    ("local-proxy", 0, 0, "trt7_0_0_", [*NO_GPUS, *SOCKETS], "4,5,6,7"),
    ("sandbox-instances", 0, 0, "trt7_0_0_", SOCKETS, "4,5"),
    ("sandbox-instances", 1, 0, "trt7_1_0_", SOCKETS, "6,7"),
    ("sandbox-instances", 1, 1, "trt7_1_1_", WORKER, "6,7"),
    ("pyxis-large-instances", 1, 7, "trt7_1_7_", WORKER, "4,5,6,7"),
    ("tensorrt-llm-two-nodes", 0, 0, "trt7_0_0_", SOCKETS, "4,5,6,7"),
    ("tensorrt-llm-two-nodes", 0, 7, "trt7_0_7_", WORKER, "4,5,6,7"),
    ("pytorch-triton-two-nodes", 0, 0, "trt7_0_0_", LEADER, "4,5,6,7"),
    ("orchestrator", 0, 0, "trt7_0_0_", SOCKETS, "4,5,6,7"),
    ("disaggregated", 0, 0, "trt7_0_0_", SOCKETS, "4,5,6,7"),
    (
        "disaggregated",
        0,
        1,
        "trt7_0_1_",
        ["--model-control-mode=explicit", "--load-model=context", "--load-model=generation", *CLOSED],
        "4,5,6,7",
    ),
]


Case = tuple[dict[str, Any], dict[str, Any]]


def command_of(folder: Path, case: Case, instance: int, rank: int) -> tuple[list[str], str | None]:
    """The options that ``rank.sh`` passes on for the server, and the GPUs that it sees."""
    shows = folder / "python"
    shows.write_text(_SHOWS)
    shows.chmod(0o755)
    plan = replace(plan_of(*case, str(folder)), task_python=str(shows))
    script = folder / "rank.sh"
    script.write_text(render_scripts(plan)["rank.sh"])
    plan.server.spec.write(folder / "server.json")
    variables: dict[str, Any] = {
        "SLURM_PROCID": rank,
        "TRTLLM_HPC_PROCID": rank,
        "TRTLLM_HPC_JOB_ID": 7,
        "TRTLLM_HPC_INSTANCE": instance,
        "TRTLLM_HPC_ADDRESS": "10.0.0.1",
        "TRTLLM_HPC_HTTP_PORT": 1,
        "TRTLLM_HPC_GRPC_PORT": 2,
        "TRTLLM_HPC_METRICS_PORT": 3,
        **({"TRTLLM_HPC_SOCKETS": folder / "sockets"} if plan.has_proxy else {}),
        "CUDA_VISIBLE_DEVICES": "4,5,6,7",
        "PATH": os.environ["PATH"],
    }
    environment = {name: str(value) for name, value in variables.items()}
    said = subprocess.run(
        ["bash", script], env=environment, capture_output=True, text=True, check=True
    ).stdout
    words, gpus = json.loads(said)
    assert words[1] == "rank" and f"--rank={rank}" in words
    given = dict(word[2:].split("=", 1) for word in words[2:] if "=" in word)
    with mock.patch.dict(os.environ, environment), mock.patch("shutil.which", lambda name: f"/bin/{name}"):
        options = RankOptions(
            rank=rank,
            world_size=int(given["world-size"]),
            ranks_per_node=int(given["ranks-per-node"]),
            prefix=shm_prefix(instance, rank),
            ready_timeout_seconds=1,
            spec=read_spec(Path(given["spec"])),
        )
        scratch = folder / "scratch"
        scratch.mkdir()
        words, _ = start_command(RunPaths(folder), options, scratch)
    options_of_server = [word for word in words[1:] if not word.startswith("--backend-directory")]
    assert options_of_server.pop(0) == f"--model-repository={scratch}/repository"
    return [word.replace(str(folder / "sockets"), "SOCKETS") for word in options_of_server], gpus


@pytest.mark.parametrize(("case", "instance", "rank", "prefix", "options", "gpus"), TABLE)
def test_each_rank_has_exactly_its_command(
    tmp_path: Path, case: str, instance: int, rank: int, prefix: str, options: list[str], gpus: str | None
) -> None:
    found, sees = command_of(tmp_path, CASES[case], instance, rank)
    pools = [word for word in found if re.match(r"--(pinned|cuda)-memory-pool|--enable-peer", word)]
    assert [word for word in found if word not in pools] == [
        "--disable-auto-complete-config",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        *options,
    ]
    assert bool(pools) == (case == "orchestrator")
    assert sees == gpus


def test_the_leaders_sockets_are_in_a_folder_of_its_own(tmp_path: Path) -> None:
    command_of(tmp_path, CASES["sandbox-instances"], 1, 0)
    assert (tmp_path / "sockets").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("release", "says_so"), [("0.16.0", False), ("0.18.2", True), ("0.19.0", True), ("0.20.0", False)]
)
def test_only_a_variable_makes_some_releases_send_the_cache_by_mpi(release: str, says_so: bool) -> None:
    job, cluster = CASES["disaggregated"]
    container = {**cluster["container"], "tensorrt_llm_version": release}
    spec = plan_of(job, {**cluster, "container": container}, "/runs/one").server.spec
    assert (spec.environment.get("TRTLLM_USE_MPI_KVCACHE") == "1") is says_so
