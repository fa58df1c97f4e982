"""``trtllm-hpc client --chat``: a question over OpenAI's chat."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.bench.openai_server import DONE, Script, delta, openai_server
from trtllm_hpc.cli.client import command
from trtllm_hpc.errors import ExitCode


@pytest.fixture
def script() -> Script:
    return Script([delta("First"), 0.01, delta(" answer."), DONE])


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with openai_server(script) as endpoint:
        yield str(endpoint.openai_url)


def test_a_question_has_its_system_prompt_and_the_length_that_was_asked_for(url: str, script: Script) -> None:
    for words in ((), ("--max-tokens", "16", "--system", "Be brief.", "--temperature", "0")):
        asked = CliRunner().invoke(command, ["--url", url, "--chat", "Who?", *words])
        assert asked.exit_code == 0 and asked.stdout == "First answer.\n"
    first, second = script.bodies
    assert "max_tokens" not in first, "the server knows how much room there is"
    assert (second["max_tokens"], second["temperature"], second["stream"]) == (16, 0, True)
    system, question = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}
    assert (first["messages"], second["messages"]) == ([question], [system, question])


def test_a_prompt_is_needed(url: str) -> None:
    asked = CliRunner().invoke(command, ["--url", url, "--chat"], input="Who?\n")
    assert asked.exit_code == ExitCode.USAGE and "A prompt is missing" in asked.stderr
