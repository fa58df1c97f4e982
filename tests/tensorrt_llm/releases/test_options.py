"""What the lists say of options whose change has cost people an engine."""

from __future__ import annotations

from trtllm_hpc.tensorrt_llm.releases.programs import Program, ProgramOption
from trtllm_hpc.tensorrt_llm.releases.release import release_of_version


def program(version: str, name: str = "trtllm-build") -> Program:
    release = release_of_version(version)
    assert release is not None
    found = release.program(name)
    assert found is not None
    return found


def option(version: str, word: str, name: str = "trtllm-build") -> ProgramOption:
    found = program(version, name).find(word)
    assert found is not None
    return found


def test_a_default_that_varies_is_known() -> None:
    assert option("0.12", "--max_batch_size").default == 256
    assert option("0.12", "--max_batch_size").default_varies
    assert not option("0.12", "--max_input_len").default_varies


def test_a_form_that_changed() -> None:
    assert option("0.7.1", "--paged_kv_cache").form == "flag"
    assert option("0.9", "--paged_kv_cache").form == "switch"
    assert option("0.9", "--paged_kv_cache").choices == ("enable", "disable")


def test_another_spelling_is_the_same_option() -> None:
    assert option("0.16", "--max_decoder_seq_len").name == "--max_seq_len"
    assert option("0.16", "-i", "hf_lora_convert.py").name == "--in-file"


def test_an_ignored_option_has_its_reason() -> None:
    assert "checkpoint" in (option("0.9", "--tp_size").ignored or "")


def test_sub_commands_have_options_of_their_own() -> None:
    found = program("1.0", "trtllm-serve")
    assert "--config_file" in found.subcommands["disaggregated"].options
    assert "--config_file" not in found.options
