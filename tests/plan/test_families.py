"""Whose programs convert a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_hpc.tensorrt_llm.job_facts import read_model_config
from trtllm_hpc.tensorrt_llm.releases.families import families, family_folder, find_family


@pytest.mark.parametrize(
    ("architecture", "name", "examples"),
    [
        ("LlamaForCausalLM", "llama", "llama"),
        ("MistralForCausalLM", "mistral", "llama"),
        ("MixtralForCausalLM", "mixtral", "llama"),
        ("GPT2LMHeadModel", "gpt", "gpt"),
        ("Qwen2ForCausalLM", "qwen2", "qwen"),
    ],
)
def test_an_architecture_tells(architecture: str, name: str, examples: str) -> None:
    family = find_family(None, {"architectures": [architecture]})
    assert family is not None and (family.name, family.examples) == (name, examples)


def test_what_a_person_states_comes_first() -> None:
    family = find_family("gpt", {"architectures": ["LlamaForCausalLM"]})
    assert family is not None and family.name == "gpt"
    assert find_family(None, None) is None
    assert find_family(None, {"architectures": ["Unheard"]}) is None


def test_a_family_that_only_upstream_knows_is_unknown() -> None:
    assert find_family("falcon", {"architectures": ["LlamaForCausalLM"]}) is None


def test_no_architecture_is_of_two_families_and_every_folder_is_known() -> None:
    named = [name for family in families().values() for name in family.architectures]
    assert len(named) == len(set(named))
    assert all(family_folder("1.2.1", family.examples) for family in families().values())
    assert all(family.source for family in families().values())


@pytest.mark.parametrize("text", ["", "[1]", "{", "\ud83d"])
def test_a_config_that_is_none_is_as_good_as_missing(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert read_model_config(str(tmp_path)) is None
    assert read_model_config(str(tmp_path / "nowhere")) is None
    assert read_model_config(None) is None
