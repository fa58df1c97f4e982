"""``trtllm-hpc bench`` as a person types it, before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cli.test_completion import offered
from tests.cli.typed import home as home
from tests.runs.test_find import make
from trtllm_hpc.cli import command
from trtllm_hpc.errors import ExitCode, RunNotFound


@pytest.fixture(autouse=True)
def run(home: Path) -> None:
    """The only one in the working folder."""
    make(home / "runs" / "llama-1", "llama", 0)


def types(*words: str) -> Result:
    return CliRunner().invoke(command, words)


def test_the_shell_completes_commands_and_the_default_one() -> None:
    assert offered("bench") == ["run", "list", "show", "compare", "latest", "llama-1"]
    assert offered("bench", incomplete="l") == ["list", "latest", "llama-1"]
    assert offered("bench", incomplete="comp") == ["compare"]
    assert "--rate" in offered("bench", incomplete="--ra")
    assert "--rate" in offered("bench", "latest", incomplete="--ra")
    assert "open" not in offered("bench", "list", incomplete="l")
    assert offered("bench", "list", incomplete="ll") == ["llama-1"]


def test_a_mistyped_command_is_corrected() -> None:
    wrong = types("bench", "shwo", "latest").exception
    assert isinstance(wrong, RunNotFound) and "Did you mean the command 'show'?" in wrong.message
    assert wrong.hint is not None and wrong.hint.endswith("bench show")
    for name in ("falcon", "latest"):
        other = types("bench", name, "--runs", "nowhere").exception
        assert isinstance(other, RunNotFound) and "Did you mean" not in other.message


def test_a_report_that_cannot_be_written_is_refused_first() -> None:
    result = types("report", "--output", "nowhere/x.html")
    assert result.exit_code == ExitCode.USAGE and "there is no folder nowhere" in result.output
    Path("file").write_text("")
    assert "there is no folder file" in types("report", "--output", "file/x.html").output
