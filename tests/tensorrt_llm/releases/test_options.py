"""What the lists say of options whose change has cost people an engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trtllm_hpc.tensorrt_llm.releases.commands import Command, Option
from trtllm_hpc.tensorrt_llm.releases.release import release_of_version


def program(version: str, name: str = "trtllm-build", family: str = "llama") -> Command:
    release = release_of_version(version)
    assert release is not None
    command = release.command(name, family)
    assert command is not None
    return command


def option(version: str, word: str, name: str = "trtllm-build") -> Option:
    found = program(version, name).find(word)
    assert found is not None
    return found


def test_the_change_is_told_from_the_release_at_hand() -> None:
    assert option("0.12", "--max_batch_size").changed == (
        "Left out, it is 256 here: 1 before 0.11.0, 256 from 0.11.0, 2048 from 0.14.0."
    )
    assert option("0.12", "--max_input_len").changed is None


@pytest.mark.parametrize(
    ("word", "first", "gone", "instead"),
    [
        ("--max_output_len", "0.7.0", "0.12.0", "--max_seq_len"),
        ("--use_custom_all_reduce", "0.7.0", "0.12.0", "run time"),
        ("--kv_cache_type", "0.13.0", None, None),
        ("--tp_size", "0.9.0", "0.12.0", "convert_checkpoint.py"),
        ("--gpus_per_node", "0.9.0", "1.2.0", None),
        ("--builder_force_num_profiles", "0.12.0", "0.15.0", "BUILDER_FORCE_NUM_PROFILES"),
    ],
)
def test_an_option_is_found_in_releases_that_lack_it(
    word: str, first: str, gone: str | None, instead: str | None
) -> None:
    history = program("0.16").histories.get(word)
    assert history is not None
    assert (history.first, history.gone) == (first, gone)
    if instead is not None:
        assert history.replaced_by is not None and instead in history.replaced_by


def test_what_no_release_has_has_no_history() -> None:
    assert program("0.16").histories.get("--max_speed") is None


def test_a_form_that_changed() -> None:
    assert option("0.7.1", "--paged_kv_cache").form == "flag"
    assert option("0.9", "--paged_kv_cache").form == "switch"
    assert option("0.9", "--paged_kv_cache").choices == ("enable", "disable")


def test_another_spelling_is_the_same_option() -> None:
    assert option("0.16", "--max_decoder_seq_len").name == "--max_seq_len"
    assert option("0.16", "-i", "hf_lora_convert.py").name == "--in-file"


def test_a_gap_in_an_options_life_is_told() -> None:
    command = program("0.10", "convert_checkpoint.py", "mixtral")
    history = command.histories.get("--fp8_kv_cache")
    assert command.family == "llama"
    assert "--fp8_kv_cache" not in command.options
    assert history is not None and history.note is not None
    assert "0.9.0, 0.10.0, 0.11.0" in history.note


def test_the_ignored_option_says_so() -> None:
    said = option("0.9", "--tp_size").ignored
    assert said is not None and "checkpoint" in said
    assert option("0.9", "--max_batch_size").ignored is None


def test_sub_commands_have_options_of_their_own() -> None:
    command = program("1.0", "trtllm-serve")
    assert "disaggregated" in command.subcommands
    assert "--config_file" in command.subcommands["disaggregated"].options
    assert "--config_file" not in command.options
    older = release_of_version("0.16.0")
    assert older is not None and older.command("trtllm-serve") is None


def test_one_release_is_loaded_within_fifty_milliseconds() -> None:
    code = (
        "from time import process_time\n"
        "from trtllm_hpc.tensorrt_llm.releases.release import find_release\n"
        "start = process_time()\n"
        "find_release('tritonserver:24.12-trtllm-python-py3', None).command('trtllm-build')\n"
        "print(process_time() - start)"
    )
    times = [
        float(
            subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60).stdout
        )
        for _ in range(3)
    ]
    assert min(times) < 0.05
