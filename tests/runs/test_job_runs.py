"""``jobs ran``: the entry of a run of a shipped job file, and how the job file's status follows from it."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.runs.made import written
from trtllm_hpc.cli import command
from trtllm_hpc.config.files import jobs
from trtllm_hpc.config.inheritance import read_job
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs import job_runs
from trtllm_hpc.runtime.lock import Lock
from trtllm_hpc.runtime.records import add_event

toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
CONTAINER = {"runtime": "pyxis", "image": "nvcr.io#nvidia/tensorrt-llm/release:1.2.1"}


def served(folder: Path, **engine: Any) -> RunPaths:
    """A run of ``qwen3-8b`` on two nodes' H200 that has served."""
    job = read_job(jobs()["qwen3-8b"]).model_dump(mode="json", exclude_unset=True)
    job["engine"].update(engine)
    _, paths = written(folder, job, container=CONTAINER)
    lock = Lock.read(paths.lock)
    assert lock is not None
    gpu = "NVIDIA H200"
    replace(lock, nodes=[{"gpus": [gpu, gpu]}, {"gpus": [gpu]}]).write(paths.lock)
    add_event(paths, "serve", "ready")
    return paths


def test_a_run_becomes_an_entry_and_the_status_of_its_job_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = served(tmp_path / "run", enable_chunked_prefill=False)
    typed = CliRunner().invoke(
        command, ["jobs", "ran", str(run.folder), "--by", "Ana"], catch_exceptions=False
    )
    assert typed.exit_code == 0, typed.output
    [entry] = toml.loads(typed.stdout)["run"]
    assert entry["job"] == "qwen3-8b" and entry["by"] == "Ana" and entry["nodes"] == 2
    assert entry["gpus"] == "3 x NVIDIA H200" and entry["tokens_per_s"] == 0
    assert entry["changed"] == ["engine.enable_chunked_prefill"]
    known = {
        "parsed_by": "TensorRT-LLM 9",
        "not_parsed": ["later"],
        "run": [{**entry, "tokens_per_s": 1234.5}],
    }
    monkeypatch.setattr(job_runs, "_known", lambda: known)
    status = job_runs.status_of("qwen3-8b")
    assert status.startswith("run by Ana on 3 x NVIDIA H200, ") and "1,234 tokens/s" in status
    assert status.endswith("with other engine.enable_chunked_prefill")
    assert job_runs.status_of("other") == "parsed by TensorRT-LLM 9's code, never run"
    assert job_runs.status_of("later") == "not parsed by TensorRT-LLM 9's code, never run"


def test_only_a_run_of_a_shipped_job_that_has_served_has_an_entry(tmp_path: Path) -> None:
    _, own = written(tmp_path / "own")
    _, early = written(tmp_path / "early", {"name": "qwen3-8b"})
    for run, wrong in ((own, "is of demo, which is not a shipped job file"), (early, "has not served")):
        typed = CliRunner().invoke(command, ["jobs", "ran", str(run.folder), "--by", "Ana"])
        assert typed.exit_code == 1 and wrong in str(typed.exception)


def test_what_is_known_names_shipped_job_files() -> None:
    known = job_runs._known()
    assert {*known["not_parsed"], *(run["job"] for run in known.get("run", ()))} <= set(jobs())
