"""``lock.json``: what a run is made of, and how it is repeated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.render.cases import CASES, plan_of
from tests.runs.made import written
from trtllm_hpc.cli import command
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import make_plan
from trtllm_hpc.render.run_folder import lock_of
from trtllm_hpc.render.scripts import render_scripts
from trtllm_hpc.runtime.lock import Lock, add_findings
from trtllm_hpc.runtime.records import RankRecord
from trtllm_hpc.validation.load import load

REPEATED = ("local", "pyxis-two-nodes", "openai-heterogeneous", "vllm-llama-3.1-405b-two-nodes")


def typed(*words: str | Path) -> Result:
    return CliRunner().invoke(command, [*map(str, words)], catch_exceptions=False)


def checkpoint(folder: Path, config: str = "{}") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(b"0" * 64)
    return folder


@pytest.mark.parametrize("case", REPEATED)
def test_the_scripts_of_a_lock_are_the_same_but_for_their_paths(case: str, tmp_path: Path) -> None:
    plan = plan_of(*CASES[case], str(tmp_path / "one"))
    lock = tmp_path / "lock.json"
    lock_of(plan).write(lock)
    facts = load(lock, "not-asked-for")
    assert (facts.job, facts.cluster) == (plan.job, plan.cluster.model_copy(update={"job_defaults": {}}))
    again = make_plan(facts, RunPaths(tmp_path / "two"), python=plan.python)
    here, there = (json.dumps(render_scripts(it)) for it in (plan, again))
    assert here.replace(str(tmp_path / "one"), str(tmp_path / "two")) == there


def test_a_lock_says_what_the_run_is_made_of(tmp_path: Path) -> None:
    image = tmp_path / "image.sqsh"
    image.write_bytes(b"hsqs" + b"0" * 100_000)
    model = checkpoint(tmp_path / "model")
    job = {"name": "a", "model": {"path": str(model)}, "engine": {"backend": "pytorch"}}
    container = {"runtime": "pyxis", "image": str(image), "tensorrt_llm_version": "1.2.1"}
    lock = lock_of(plan_of(job, {"name": "c", "container": container}, str(tmp_path / "run")))
    assert lock.release == "1.2.1" and lock.image is not None and lock.checkpoint is not None
    assert (lock.image["name"], lock.image["bytes"]) == (str(image), 100_004)
    assert lock.checkpoint["model.safetensors"] == [64, None]
    assert lock.checkpoint["config.json"][0] == 2 and len(lock.checkpoint["config.json"][1]) == 64
    (model / "config.json").write_text("[]")  # the same size
    assert lock_of(plan_of(job, {"name": "c", "container": container}, "/run")).checkpoint != lock.checkpoint


def test_secrets_are_left_out_and_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"HF_TOKEN": "secret-word-1", "TOKENIZERS_PARALLELISM": "false", "A": "a"}
    cluster = {
        "setup": ["export WANDB_API_KEY=secret-word-2"],
        "environment": {"MY_KEY": "secret-word-3"},
    }
    _, run = written(tmp_path / "run", {"serve": {"environment": variables}}, **cluster)
    assert "secret-word" not in run.lock.read_text()
    lock = Lock.read(run.lock)
    assert lock is not None
    assert lock.left_out == ["serve.environment.HF_TOKEN", "cluster.environment.MY_KEY", "cluster.setup"]
    monkeypatch.setenv("HF_TOKEN", "it's: a #token")
    with pytest.raises(ConfigError) as refused:
        load(run.folder, "", ["cluster.setup=[]"])
    assert len(refused.value.diagnostics) == 1, str(refused.value.diagnostics)
    [missing] = refused.value.diagnostics
    assert (missing.code, missing.field) == ("left-out", "cluster.environment.MY_KEY")
    assert "export MY_KEY=... before" in str(missing) and "--cluster" not in (refused.value.hint or "")
    facts = load(run.folder, "", ["cluster.setup=[x]", "cluster.environment.MY_KEY=p", "serve.nodes=1"])
    assert facts.job.serve.environment == {**variables, "HF_TOKEN": "it's: a #token"}
    assert (facts.cluster.setup, facts.cluster.environment) == (["x"], {"MY_KEY": "p"})


def test_what_is_not_as_it_was_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = checkpoint(tmp_path / "model")
    _, run = written(tmp_path / "run", {"model": {"path": str(model)}})
    lock = Lock.read(run.lock)
    assert lock is not None
    replace(lock, version="0.0.1").write(run.lock)
    checkpoint(model, config='{"a": 1}')
    monkeypatch.chdir(tmp_path)
    done = typed("render", "run", "--set", "serve.nodes=1")
    assert done.exit_code == 0
    words = " ".join(done.stderr.split())
    assert "warning: trtllm-hpc: version is" in words and 'but "0.0.1" in the lock' in words
    assert "warning: checkpoint: config.json is [8, " in words
    assert "checkpoint: model.safetensors" not in words
    wrong = typed("render", run.lock, "--cluster", "local")
    assert wrong.exit_code == 2 and "leave --cluster out" in wrong.output


def found(paths: RunPaths, rank: int, host: str, **details: Any) -> None:
    RankRecord("preflight", rank, 2, "7", host, 1, 0.0, details=details).write(
        paths.rank_record("preflight", rank)
    )


def test_the_job_adds_what_it_finds(tmp_path: Path) -> None:
    _, run = written(tmp_path / "run")
    before = Lock.read(run.lock)
    assert before is not None and before.nodes == []
    seen = {"gpu_models": ["H100, 550"], "gpu_limits": ["1980 MHz"], "packages": {"torch": "2.9"}}
    found(run, 0, "n1", **seen)
    found(run, 1, "n1", gpu_models=[])
    found(run, 2, "n2", **seen)
    add_findings(run)
    done = Lock.read(run.lock)
    assert done is not None and [node["host"] for node in done.nodes] == ["n1", "n2"]
    assert done.made_of["nodes"]["gpus"] == [["H100, 550"]] and done.made_of["nodes"]["count"] == 2
