"""A talk with a model: ``trtllm-hpc client --chat`` on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest
from click.testing import CliRunner

from tests.bench.openai_server import DONE, Script, delta, openai_server
from tests.waiting import eventually
from trtllm_hpc.cli.client import command
from trtllm_hpc.errors import ExitCode

CTRL_C, CTRL_D = "\x03", "\x04"


@dataclass
class Terminal:
    """The person's side of a terminal."""

    descriptor: int
    process: subprocess.Popen[bytes]
    shown: str = ""
    seen: int = field(default=0)

    def types(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def sees(self, text: str) -> None:
        """Wait until a text is shown, after what was seen before."""
        assert eventually(lambda: text in self._read()[self.seen :]), self.shown
        self.seen = self.shown.index(text, self.seen) + len(text)

    def _read(self) -> str:
        with suppress(BlockingIOError, OSError):  # OSError: the program has ended
            self.shown += os.read(self.descriptor, 65536).decode()
        return self.shown


@contextmanager
def talking(url: str, *options: str) -> Iterator[Terminal]:
    """A talk in a terminal of its own, whose Ctrl-C is a signal."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    words = [sys.executable, "-m", "trtllm_hpc", "client", "--url", url, "--chat", *options]
    process = subprocess.Popen(
        ["setsid", "--ctty", *words], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.fixture
def script() -> Script:
    return Script([delta("First"), 0.01, delta(" answer."), DONE])


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with openai_server(script) as endpoint:
        yield str(endpoint.openai_url)


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_each_question_goes_with_all_that_was_said(url: str, script: Script) -> None:
    with talking(url, "--system", "Be brief.", "--temperature", "0.5") as terminal:
        terminal.sees("one: Ctrl-C ends an answer, Ctrl-D the talk.")
        terminal.sees("> ")
        terminal.types("Who wrote it?\n")
        terminal.sees("First answer.\r\n> ")
        script.pieces = [delta("Another."), DONE]
        terminal.types("\n  \nAnd when?\n")
        # Ctrl-D that comes before the prompt is not an end for readline.
        terminal.sees("Another.\r\n> ")
        terminal.types(CTRL_D)
        assert terminal.process.wait(60) == 0
    first, second = script.bodies
    begin = [said("system", "Be brief."), said("user", "Who wrote it?")]
    assert first["messages"] == begin
    assert second["messages"] == [*begin, said("assistant", "First answer."), said("user", "And when?")]
    assert first["temperature"] == 0.5 and first["stream"] is True
    assert "max_tokens" not in first  # the server knows how much room there is


def test_ctrl_c_ends_the_answer_and_the_talk_goes_on(url: str, script: Script) -> None:
    script.pieces = [delta("A long"), 60.0]
    with talking(url) as terminal:
        terminal.sees("> ")
        terminal.types("Question\n")
        terminal.sees("A long")
        terminal.types(CTRL_C)
        terminal.sees(" (ended)\r\n> ")
        terminal.types(f"half a quest{CTRL_C}")
        terminal.sees("> ")
        script.pieces = [delta("Short."), DONE]
        terminal.types("Again\n")
        terminal.sees("Short.\r\n> ")
        terminal.types(CTRL_D)
        assert terminal.process.wait(60) == 0
    assert script.bodies[1]["messages"] == [
        said("user", "Question"),
        said("assistant", "A long"),
        said("user", "Again"),
    ]


def test_a_chat_of_one_question_has_the_length_that_was_asked_for(url: str, script: Script) -> None:
    for words in ((), ("--max-tokens", "16")):
        asked = CliRunner().invoke(command, ["--url", url, "--chat", "Who?", *words])
        assert asked.exit_code == 0 and asked.stdout == "First answer.\n"
    assert [body.get("max_tokens") for body in script.bodies] == [None, 16]


def test_without_a_terminal_a_prompt_is_needed(url: str) -> None:
    asked = CliRunner().invoke(command, ["--url", url, "--chat"], input="Who?\n")
    assert asked.exit_code == ExitCode.USAGE and "A prompt is missing" in asked.stderr
