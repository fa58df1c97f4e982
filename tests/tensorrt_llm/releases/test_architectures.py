"""The first release of each architecture: what the data say, and what a job file is told."""

from __future__ import annotations

import json

import pytest

from tests.config.files import JOB, Folder
from trtllm_hpc.tensorrt_llm.releases.data_files import read_data
from trtllm_hpc.tensorrt_llm.releases.release import releases

KNOWN = read_data("architectures")["architecture"]
VERSIONS = [release.version for release in releases()]
PROGRAMS = ("build.py", "convert_checkpoint.py")


def test_every_architecture_has_a_release_and_a_source() -> None:
    assert all(set(entry) == {"since", "source"} and entry["source"] for entry in KNOWN.values())
    assert {entry["since"] for entry in KNOWN.values()} <= set(VERSIONS)


def job(release: str, model: str) -> str:
    return f"{JOB}model: {model}\nengine: {{backend: tensorrtllm, tensorrt_llm_version: {release}}}\n"


@pytest.mark.parametrize(
    ("architecture", "family", "release", "first"),
    [
        ("Qwen3ForCausalLM", None, "0.16.0", "1.0.0"),
        ("Qwen3MoeForCausalLM", "qwen", "0.21.0", "1.0.0"),
        ("MixtralForCausalLM", None, "0.5.0", "0.7.0"),
        ("MixtralForCausalLM", "llama", "0.6.1", "0.7.0"),
    ],
)
def test_a_model_that_came_later_is_refused_with_its_release(
    files: Folder, architecture: str, family: str | None, release: str, first: str
) -> None:
    folder = files.folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    model = f"{{path: {folder}}}" if family is None else f"{{path: {folder}, family: {family}}}"
    [found] = [each for each in files.diagnostics(job(release, model)) if each.field == "model.path"]
    assert found.message == (
        f"TensorRT-LLM {release} builds no engine of {architecture}: the first release that does is {first}"
    )
    assert found.hint == f"take TensorRT-LLM {first} or later, or another model"


def test_a_family_tells_where_the_folder_cannot_be_seen(files: Folder) -> None:
    for family, named in (("mixtral", "MixtralForCausalLM"), ("qwen3", "qwen3")):
        found = files.diagnostics(job("0.6.1", f"{{path: /nowhere, family: {family}}}"))
        [problem] = [each for each in found if each.field == "model.family"]
        assert f"builds no engine of {named}:" in problem.message
