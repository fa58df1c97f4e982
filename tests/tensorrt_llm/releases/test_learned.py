"""``versions learn``: a release that only an image has described."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.schemas.check import documented
from trtllm_hpc.errors import ExitCode

OPTION = {"aliases": [], "form": "value", "choices": [], "required": False, "type": None, "default": None}
BUNDLE: dict[str, Any] = {
    "facts": {
        "image": {
            "packages": {"tensorrt_llm": "2.0.0rc1+cu13"},
            "versions": {"Triton": "27.01"},
            "serve_options": {
                "serve": [
                    {**OPTION, "name": "--tensor_parallel_size", "aliases": ["--tp_size"], "type": "int"},
                    {**OPTION, "name": "--warp", "form": "flag"},
                ],
                "disaggregated": [{**OPTION, "name": "--config_file", "aliases": ["-c"], "required": True}],
            },
            "llm_api": {
                "": ["kv_cache_config", "warp_config"],
                "kv_cache_config": ["dtype"],
                "warp_config": ["speed"],
            },
        }
    }
}
JOB = """
name: new
model: {path: /models/m}
engine: {backend: pytorch, llm_api: {%s}}
serve: {frontend: openai}
"""


class Home:
    """A user's own folders; every command is a process, since facts are read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundle = folder / "site.json"
        self.bundle.write_text(json.dumps(BUNDLE))

    def types(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "XDG_DATA_HOME": str(self.folder / "data"), "COLUMNS": "300"}
        command = [str(Path(sys.executable).with_name("trtllm-hpc")), *words]
        return subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True)

    def renders(self, keys: str, version: str = "2.0.0rc1") -> subprocess.CompletedProcess[str]:
        (self.folder / "job.yaml").write_text(JOB % keys)
        image = f"cluster.container.image=nvcr.io#nvidia/tensorrt-llm/release:{version}"
        return self.types("render", "job.yaml", "--cluster", "pyxis", "--set", image)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_the_checks_use_what_an_image_has_said(home: Home) -> None:
    before = home.renders("warp_confg: {speed: 9}")
    assert before.returncode == 0, "of an unknown release nothing is refused"
    learned = documented("versions learn", home.types("versions", "learn", "site.json", "--json").stdout)
    assert learned["version"] == "2.0.0rc1"
    refused = home.renders("warp_confg: {speed: 9}")
    assert refused.returncode == ExitCode.CONFIG and "warp_config" in refused.stderr
    deeper = home.renders("warp_config: {sped: 9}")
    assert deeper.returncode == ExitCode.CONFIG and "warp_config.sped" in deeper.stderr
    taken = home.renders("warp_config: {speed: 9}")
    assert taken.returncode == 0, taken.stderr
    Path(learned["file"]).unlink()
    assert home.renders("warp_confg: {speed: 9}").returncode == 0


def test_a_learned_release_is_looked_up_like_any_other(home: Home) -> None:
    assert home.types("versions", "learn", "site.json").returncode == 0
    assert "27.01" in home.types("versions", "show", "2.0.0rc1").stdout
    shown = home.types("versions", "show", "27.01", "trtllm-serve").stdout
    assert "--warp" in shown and "--tensor_parallel_size, --tp_size" in shown
    known = home.types("versions", "show", "1.2.1", "trtllm-serve").stdout
    assert "--warp" not in known


def test_a_known_release_keeps_the_rules_of_its_values(home: Home) -> None:
    image = BUNDLE["facts"]["image"]
    known = {**image, "packages": {"tensorrt_llm": "1.2.1"}}
    known["llm_api"] = {"": ["kv_cache_config"], "kv_cache_config": ["max_attention_window"]}
    home.bundle.write_text(json.dumps({"facts": {"image": known}}))
    assert home.types("versions", "learn", "site.json").returncode == 0
    refused = home.renders("kv_cache_config: {max_attention_window: [0]}", "1.2.1")
    assert refused.returncode == ExitCode.CONFIG and "max_attention_window" in refused.stderr


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"facts": {"image": {"packages": {}}}}', "no JSON"])
def test_what_is_not_a_bundle_is_refused(home: Home, text: str) -> None:
    home.bundle.write_text(text)
    answer = home.types("versions", "learn", "site.json")
    assert answer.returncode == ExitCode.CONFIG
    assert "is not a bundle of doctor --on-nodes" in answer.stderr and "--bundle site.json" in answer.stderr
    assert not (home.folder / "data").exists()


def test_a_damaged_file_is_as_good_as_not_there(home: Home) -> None:
    assert home.types("versions", "learn", "site.json").returncode == 0
    (file,) = (home.folder / "data").rglob("*.json")
    whole = file.read_text()
    for text in (whole[:-20], "{}", whole.replace('"serve":', '"other":'), whole.replace('"tags"', '"tag"')):
        file.write_text(text)
        answer = home.types("versions")
        assert answer.returncode == 0 and "2.0.0rc1" not in answer.stdout
