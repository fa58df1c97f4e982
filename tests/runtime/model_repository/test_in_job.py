"""The whole way of a job that fills the repository itself: templates that only the node has."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.runtime.model_repository.python_models import SOURCES
from tests.runtime.model_repository.upstream import write_all_models
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Endpoint

pytestmark = pytest.mark.triton

LIMIT_S = 60.0


def cli(*options: str | Path) -> str:
    """Type ``trtllm-hpc``; returns what it printed."""
    command = [sys.executable, "-m", "trtllm_hpc", *map(str, options)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """An engine folder as far as the preflight looks."""
    folder = tmp_path / "an engine, 'quoted': yes"
    folder.mkdir()
    config = {
        "version": "0.16.0",
        "pretrained_config": {"mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1, "gpus_per_node": 8}},
        "build_config": {"max_batch_size": 8, "max_input_len": 64, "max_seq_len": 128},
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "rank0.engine").write_bytes(b"x")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return folder


def wait_ready(paths: RunPaths, server: subprocess.Popen[bytes]) -> Endpoint:
    deadline = time.monotonic() + LIMIT_S
    while (endpoint := Endpoint.read(paths.endpoint)) is None:
        assert server.poll() is None, paths.batch_log("serve").read_text(encoding="utf-8")
        assert time.monotonic() < deadline, "not ready in time"
        time.sleep(0.1)
    return endpoint


def test_the_jobs_first_step_makes_the_repository(tmp_path: Path, engine: Path) -> None:
    container = {"tensorrt_llm_version": "0.16.0", "all_models": str(tmp_path / "all_models")}
    site = {"name": "site", "scheduler": "local", "container": container, "triton": {"server": "pytriton"}}
    job = {
        "name": "upstream",
        "model": {"path": None, "synthetic": None, "tokenizer": str(engine)},
        "engine": {"backend": "python", "directory": str(engine), "max_batch_size": 8},
        "serve": {"time_limit_minutes": 5, "ready_timeout_seconds": 60},
        "companion": {"enabled": False},
    }
    (tmp_path / "site.yaml").write_text(json.dumps(site), encoding="utf-8")  # JSON is YAML
    (tmp_path / "job.yaml").write_text(json.dumps(job), encoding="utf-8")
    options: list[str | Path] = ["--cluster", tmp_path / "site.yaml", "--runs", tmp_path / "runs", "--json"]
    paths = RunPaths(json.loads(cli("render", tmp_path / "job.yaml", *options))["folder"])
    assert not any(paths.repository.iterdir())

    write_all_models(tmp_path, "0.16.0", SOURCES)
    with paths.batch_log("serve").open("wb") as log:
        server = subprocess.Popen(["bash", paths.sbatch("serve")], stdout=log, stderr=log)
    try:
        endpoint = wait_ready(paths, server)
        request = urllib.request.Request(
            f"http://{endpoint.address}:{endpoint.http_port}/v2/models/ensemble/generate",
            json.dumps({"text_input": "hello", "max_tokens": 4}).encode(),
            endpoint.authorization,
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["text_output"] == f"hello|{engine}|{engine}"
    finally:
        cli("cancel", paths.folder)
        server.wait(timeout=LIMIT_S)
