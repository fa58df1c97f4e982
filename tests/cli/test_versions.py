"""``trtllm-hpc versions``: what a person sees of the releases."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from tests.schemas.check import documented
from trtllm_hpc.cli import command
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.tensorrt_llm.releases.release import UnknownRelease


def versions(*words: str) -> Result:
    return CliRunner().invoke(command, ["versions", *words], catch_exceptions=False)


def test_the_table_has_a_row_for_every_release() -> None:
    lines = versions().output.splitlines()
    assert " ".join(lines[0].split()) == "release containers TensorRT Python CUDA builds with backends"
    rows = {line.split()[0]: line for line in lines[2:]}
    assert "24.04, 24.05" in rows["0.9.0"] and "9.3.0" in rows["0.9.0"]
    assert "build.py" in rows["0.7.1"] and "trtllm-build" not in rows["0.7.1"]
    assert rows["1.2.1"].endswith("tensorrtllm, python, pytorch")


def test_each_table_is_json_too() -> None:
    [release] = [it for it in documented("versions", versions("--json").output) if it["version"] == "0.16.0"]
    assert documented("versions show", versions("show", "0.16", "--json").output) == release
    program = documented("versions show", versions("show", "0.13", "trtllm-build", "--json").output)
    assert program["options"]["--max_batch_size"]["default"] == 256
    lost = versions("--json", "show", "0.16")
    assert lost.exit_code == ExitCode.USAGE and "Write --json after 'show'" in lost.output


@pytest.mark.parametrize("word", ["0.16", "24.12", "nvcr.io/nvidia/tritonserver:24.12-trtllm-python-py3"])
def test_a_release_goes_by_several_names(word: str) -> None:
    shown = versions("show", word).output
    assert shown.startswith("TensorRT-LLM 0.16.0\n") and "convert_checkpoint.py" in shown


def test_a_program_s_options_have_their_default() -> None:
    lines = versions("show", "0.13", "trtllm-build").output.splitlines()
    (batch,) = [line for line in lines if line.startswith("--max_batch_size")]
    assert "256" in batch and "Other releases have another default." in batch


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("0.9", "trtllm-build"), "list: verified"),
        (("0.14", "trtllm-build"), "list: taken from 0.14.0.dev2024100800"),
        (("1.0", "trtllm-serve"), "trtllm-serve disaggregated of TensorRT-LLM 1.0.0"),
        (("0.16", "convert_checkpoint.py", "--family", "gpt"), "--gpt_variant"),
    ],
)
def test_a_list_says_how_surely_it_was_read_and_for_what(words: tuple[str, ...], shown: str) -> None:
    assert shown in versions("show", *words).output


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("0.99", "TensorRT-LLM 0.99 is not a release known here"),
        ("24.03", "the release of TensorRT-LLM in the container 24.03"),
    ],
)
def test_an_unknown_release_is_refused(word: str, message: str) -> None:
    with pytest.raises(UnknownRelease, match=message) as refused:
        versions("show", word)
    assert refused.value.hint == "trtllm-hpc versions"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("trtllm-bild", "there is no program 'trtllm-bild', only"),
        ("build.py", "TensorRT-LLM 0.16.0 has no build.py for llama: releases 0.5.0 to 0.7.1 have it."),
    ],
)
def test_a_program_that_the_release_lacks_is_refused(program: str, message: str) -> None:
    result = versions("show", "0.16", program)
    assert result.exit_code == ExitCode.USAGE and message in result.output
