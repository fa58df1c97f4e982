"""The client against a real tritonserver."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.plans import write_plan
from tests.schemas.check import documented
from trtllm_hpc.cli.client import command
from trtllm_hpc.client.connect import Protocol
from trtllm_hpc.client.request import Answer
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.errors import AnswerTimedOut, InvalidRequest, RequestFailed
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.records import Endpoint

from .echo_server import echo_server

pytestmark = pytest.mark.triton

PROTOCOLS = ("grpc", "http")


def generate(
    endpoint: Endpoint,
    prompt: str,
    max_tokens: int,
    protocol: Protocol = "grpc",
    model: str = "ensemble",
    timeout_s: float = 10,
) -> Answer:
    with Client(endpoint, model, protocol=protocol, timeout_s=timeout_s) as client:
        return client.generate(prompt, max_tokens=max_tokens)


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


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("prompt", ["hello", "", 'a "quoted" \\ $(x)\n', "straße 東京 🙂"])
def test_texts_arrive_unchanged_both_ways(protocol: Protocol, prompt: str, endpoint: Endpoint) -> None:
    answer = generate(endpoint, prompt, 16, protocol)
    assert (answer.text, answer.output_tokens) == (prompt.upper(), 15)
    assert answer.latency_s > 0


def test_all_responses_of_a_decoupled_model_are_received(endpoint: Endpoint) -> None:
    answer = generate(endpoint, "straße, letter by letter", 16, model="decoupled")
    assert (answer.text, answer.output_tokens) == ("STRASSE, LETTER BY LETTER", 25)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_llm_apis_model_gets_its_own_inputs(protocol: Protocol, endpoint: Endpoint) -> None:
    assert generate(endpoint, "hello", 16, protocol, model="llm_api").output_tokens == 15


def test_a_prompt_comes_from_standard_input(run: RunPaths) -> None:
    result = client(run, "--prompt", "-", "--json", stdin="two\nlines\n\n")
    assert documented("client", result.output)["prompt"] == "two\nlines\n"
    refused = client(run, "--prompt", "-", stdin=b"caf\xe9")
    assert refused.exit_code == 2 and "not valid UTF-8, at character 4 of 4" in refused.output
    refused = client(run, "--prompt", "-", stdin=b"\xff" * 2_000_000)
    assert refused.exit_code == 2 and len(refused.output) < 1000


def test_json_is_the_saved_record(run: RunPaths) -> None:
    result = client(run, "--prompt", "hello", "--protocol", "http", "--json", "--save")
    assert documented("client", result.output) == read_json(run.answer)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_servers_error_message_is_passed_on(run: RunPaths, protocol: str) -> None:
    error = client(run, "--prompt", "fail: out of luck", "--protocol", protocol).exception
    assert isinstance(error, RequestFailed) and "out of luck" in error.message
    assert "StatusCode" not in error.message and error.hint == f"trtllm-hpc logs {run.folder} --rank 0"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_an_unknown_model_is_named(run: RunPaths, protocol: str) -> None:
    error = client(run, "--prompt", "x", "--protocol", protocol, "--model", "no_such").exception
    assert isinstance(error, RequestFailed) and "no_such" in error.message


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_slow_answer_times_out(protocol: Protocol, endpoint: Endpoint) -> None:
    with pytest.raises(AnswerTimedOut, match=r"did not answer within 0\.1 s"):
        generate(endpoint, "sleep 1.5: x", 4, protocol, timeout_s=0.1)


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
    "guided_decoding_guide_type": ("guided_decoding_guide_type", "regex"),
    "guided_decoding_guide": ("guided_decoding_guide", "[a-z]+"),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_options_arrive_as_the_inputs_of_newer_models(endpoint: Endpoint, protocol: Protocol) -> None:
    options = {name: value for name, (_, value) in MIRRORED.items()}
    with Client(endpoint, "mirror", protocol=protocol) as asking:
        answer = asking.generate("hi", **options, inputs={"sampling_param_best_of": 3})
    expected = dict(MIRRORED.values()) | {"text_input": "hi", "sampling_param_best_of": 3}
    as_lists = {name: value if isinstance(value, list) else [value] for name, value in expected.items()}
    assert json.loads(answer.text) == {name: [value] for name, value in as_lists.items()}


def test_drafts_and_tables_arrive(endpoint: Endpoint, run: RunPaths) -> None:
    table = np.arange(6, dtype=np.float32).reshape(3, 2) / 4
    drafted: dict[str, Any] = {"draft_tokens": [5, 7, 9], "prompt_table_extra_id": 4}
    with Client(endpoint, "mirror") as asking:
        found = json.loads(asking.generate("hi", prompt_embedding_table=table, **drafted).text)
    assert found["draft_input_ids"] == [[5, 7, 9]] and found["prompt_vocab_size"] == [[3]]
    assert found["prompt_embedding_table"] == [table.tolist()] and found["prompt_table_extra_ids"] == [[4]]
    with Client(endpoint, "mirror") as asking, pytest.raises(InvalidRequest, match="do not fit into float16"):
        asking.generate("hi", prompt_embedding_table=table * 1e6)
    refused = client(run, "--token-ids", "5,x")
    assert refused.exit_code == 2 and "whole numbers with commas" in refused.output


def test_the_command_exits(run: RunPaths) -> None:
    """A Triton client that is left open would keep Python from exiting."""
    code = "from trtllm_hpc.cli.client import command; command()"
    arguments = [str(run.folder), "--runs", str(run.folder.parent), "--prompt", "hello"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=30, check=True
    )
    assert "HELLO" in ended.stdout
