"""Whose programs convert a model."""

from __future__ import annotations

import pytest

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


def test_no_architecture_is_of_two_families_and_every_folder_is_known() -> None:
    named = [name for family in families().values() for name in family.architectures]
    assert len(named) == len(set(named))
    assert all(family_folder("1.2.1", family.examples) for family in families().values())
    assert all(family.source for family in families().values())
