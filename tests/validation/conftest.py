from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.typed import types as types
from tests.config.files import files as files
from tests.render.cases import plan_of
from tests.scheduler.conftest import fake_slurm as fake_slurm
from tests.scheduler.test_discovery import NEW_LIST, PARTITIONS
from tests.tensorrt_llm.memory_models import LLAMA_3_8B
from tests.validation.engines import new_engine
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.paths import write_json
from trtllm_hpc.validation.checks import run_checks
from trtllm_hpc.validation.context import Context

Checked = Callable[..., dict[str, Diagnostic]]


def state(rows: dict[str, Diagnostic], name: str) -> str:
    return rows[name].state


def says(rows: dict[str, Diagnostic], name: str, *words: str) -> None:
    """That it fails, with these words, and says what to do."""
    outcome = rows[name]
    assert outcome.state == "fail", outcome
    for word in words:
        assert word in outcome.message
    assert outcome.hint
    assert not outcome.message.endswith(".") and "\n" not in outcome.message


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder that is whole."""
    folder = tmp_path / "models" / "llama"
    folder.mkdir(parents=True)
    write_json(folder / "config.json", LLAMA_3_8B)
    (folder / "tokenizer.json").write_text("{}")
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name in names:
        (folder / name).write_bytes(b"\0" * 2048)
    write_json(
        folder / "model.safetensors.index.json",
        {"weight_map": {"a.weight": names[0], "b.weight": names[1], "c.weight": names[1]}},
    )
    return folder


@pytest.fixture
def context(tmp_path: Path, model: Path) -> Callable[..., Context]:
    """A job for TensorRT-LLM 0.16 on nodes of 8 GPUs; sections of job file and profile may be set."""

    def make(cluster: dict[str, Any] | None = None, **job: Any) -> Context:
        engine = {
            "backend": "tensorrtllm",
            "tensorrt_llm_version": "0.16.0",
            "max_batch_size": 16,
            "max_seq_len": 2048,
            **job.pop("engine", {}),
        }
        profile = {"name": "here", "gpus_per_node": 8, "gpu": "h100-80gb", **(cluster or {})}
        profile.setdefault("node_local_folders", [])  # tests run below /tmp
        files = {
            "name": "demo",
            "model": {"path": str(model), "synthetic": None, "family": "llama"},
            "engine": engine,
            **job,
        }
        profile.setdefault("container", {"examples": "/examples", "all_models": "/all_models"})
        return Context.of_plan(plan_of(files, profile, str(tmp_path / "runs" / "demo-1")))

    return make


@pytest.fixture
def checked(context: Callable[..., Context]) -> Checked:
    """What the checks find, by their ids; Slurm is not asked unless ``needs`` says so."""

    def check(*, needs: tuple[str, ...] = ("",), **parts: Any) -> dict[str, Diagnostic]:
        return {row.code: row for row in run_checks(context(**parts), needs)}

    return check


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A finished engine of four ranks."""
    return new_engine(tmp_path / "engine", tensor=4)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Slurm's commands, of which ``srun`` and ``sinfo`` answer what they are told to."""

    def install(
        plugins: str = NEW_LIST,
        help_text: str = "echo --container-image",
        sinfo: str = PARTITIONS,
        limits: str = "",
        config: str = "DefMemPerNode = UNLIMITED",
        node: str = "",
    ) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        scripts = {
            **dict.fromkeys(("sbatch", "squeue", "scancel"), "exit 64"),
            "scontrol": f'case "$*" in\n"--oneliner show partition") echo "{limits}";;\n'
            f'"show config") echo "{config}";;\n"show node n1") echo "{node}";;\n*) exit 64;;\nesac',
            "sinfo": f'case "$*" in *=%N) echo n1; exit;; esac\n{sinfo}',
            "srun": f'case "$*" in\n--mpi=list) {plugins};;\n--help) {help_text};;\n*) exit 64;;\nesac',
        }
        for name, lines in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.delenv("SLURM_CONF", raising=False)

    return install
