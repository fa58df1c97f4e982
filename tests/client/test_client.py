"""The client against a real tritonserver."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.plans import write_plan
from tests.schemas.check import documented
from trtllm_hpc.cli.client import command
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.errors import AnswerTimedOut, RequestFailed
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.records import Endpoint

from .echo_server import echo_server

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with echo_server(tmp_path_factory.mktemp("server")) as ready:
        yield ready


@pytest.fixture
def run(tmp_path: Path, endpoint: Endpoint) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.make_folders()
    write_plan(paths)
    endpoint.write(paths.endpoint)
    return paths


def client(paths: RunPaths, *arguments: str, stdin: str | bytes = "") -> Result:
    words = [str(paths.folder), "--runs", str(paths.folder.parent), *arguments]
    return CliRunner().invoke(command, words, input=stdin)


@pytest.mark.parametrize("prompt", ["hello", "", 'a "quoted" \\ $(x)\n', "straße 東京 🙂"])
def test_texts_arrive_unchanged(prompt: str, endpoint: Endpoint) -> None:
    with Client(endpoint, "ensemble") as asking:
        answer = asking.generate(prompt, max_tokens=16)
    assert (answer.text, answer.output_tokens) == (prompt.upper(), 15)


def test_all_responses_of_a_decoupled_model_are_received(endpoint: Endpoint) -> None:
    with Client(endpoint, "decoupled") as asking:
        answer = asking.generate("straße, letter by letter")
    assert (answer.text, answer.output_tokens) == ("STRASSE, LETTER BY LETTER", 25)


def test_a_prompt_comes_from_standard_input(run: RunPaths) -> None:
    result = client(run, "--prompt", "-", "--json", stdin="two\nlines\n\n")
    assert documented("client", result.output)["prompt"] == "two\nlines\n"
    refused = client(run, "--prompt", "-", stdin=b"caf\xe9")
    assert refused.exit_code == 2 and "not valid UTF-8, at character 4 of 4" in refused.output


def test_json_is_the_saved_record(run: RunPaths) -> None:
    result = client(run, "--prompt", "hello", "--json", "--save")
    assert documented("client", result.output) == read_json(run.answer)
    assert read_json(run.answer)["answers"][0]["text"] == "HELLO"  # type: ignore[index]


def test_the_servers_error_message_is_passed_on(run: RunPaths) -> None:
    error = client(run, "--prompt", "fail: out of luck").exception
    assert isinstance(error, RequestFailed) and "out of luck" in error.message
    assert "StatusCode" not in error.message and error.hint == f"trtllm-hpc logs {run.folder} --rank 0"
    error = client(run, "--prompt", "x", "--model", "no_such").exception
    assert isinstance(error, RequestFailed) and "no_such" in error.message


def test_a_slow_answer_times_out(endpoint: Endpoint) -> None:
    with (
        Client(endpoint, "ensemble", timeout_s=0.1) as asking,
        pytest.raises(AnswerTimedOut, match=r"did not answer within 0\.1 s"),
    ):
        asking.generate("sleep 1.5: x")


MIRRORED: dict[str, Any] = {
    "max_tokens": ("sampling_param_max_tokens", 7),
    "temperature": ("sampling_param_temperature", 0.5),
    "top_k": ("sampling_param_top_k", 5),
    "top_p": ("sampling_param_top_p", 0.25),
    "min_p": ("sampling_param_min_p", 0.125),
    "seed": ("sampling_param_seed", 2**63 + 1),
    "presence_penalty": ("sampling_param_presence_penalty", 1.5),
    "frequency_penalty": ("sampling_param_frequency_penalty", -1.5),
    "stop_words": ("sampling_param_stop", ["one", "zwei ü"]),
    "exclude_input": ("sampling_param_exclude_input_from_output", True),
}


def test_options_arrive_as_the_inputs_of_newer_models(endpoint: Endpoint) -> None:
    options = {name: value for name, (_, value) in MIRRORED.items()}
    with Client(endpoint, "mirror") as asking:
        answer = asking.generate("hi", **options, inputs={"draft_input_ids": [5, 7]})
    expected = dict(MIRRORED.values()) | {"text_input": "hi", "draft_input_ids": [5, 7]}
    as_lists = {name: value if isinstance(value, list) else [value] for name, value in expected.items()}
    assert json.loads(answer.text) == {name: [value] for name, value in as_lists.items()}


def test_the_command_exits(run: RunPaths) -> None:
    """A Triton client that is left open would keep Python from exiting."""
    code = "from trtllm_hpc.cli.client import command; command()"
    arguments = [str(run.folder), "--runs", str(run.folder.parent), "--prompt", "hello"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=30, check=True
    )
    assert "HELLO" in ended.stdout
