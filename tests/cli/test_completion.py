"""What the shell offers when Tab is pressed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from tests.cli.typed import Types
from tests.cli.typed import home as home
from tests.runs.test_find import make
from trtllm_hpc.cli import command

_COMPLETE = ShellComplete(command, {}, "trtllm-hpc", "_TRTLLM_HPC_COMPLETE")


def offered(*words: str, incomplete: str = "") -> list[str]:
    return [item.value for item in _COMPLETE.get_completions(list(words), incomplete)]


def test_commands_and_runs(home: Path) -> None:
    make(home / "runs" / "llama-1", "llama", 10)
    make(home / "elsewhere" / "falcon-1", "falcon", 0)
    assert "submit" in offered(incomplete="sub")
    assert offered("status") == ["latest", "llama-1"]
    assert offered("cancel", incomplete="ll") == ["llama-1"]
    assert offered("status", "--runs", "elsewhere") == ["latest", "falcon-1"]
    assert offered("bench") == ["run", "list", "show", "compare"]
    assert offered("bench", "list", incomplete="ll") == ["llama-1"]
    assert "--rate" in offered("bench", "latest", incomplete="--ra")


def test_profiles_and_job_files_and_what_the_shell_lists() -> None:
    listed, *profiles = _COMPLETE.get_completions(["submit", "job.yaml", "--cluster"], "")
    assert listed.type == "file"
    assert {"local", "sandbox"} <= {item.value for item in profiles}
    assert offered("render", incomplete="tiny-llama-") == ["tiny-llama-", "tiny-llama-1rank"]


@pytest.mark.parametrize(
    ("shell", "begin", "installed"),
    [
        ("bash", "_trtllm_hpc_completion() {", 'eval "$(trtllm-hpc completion bash)"'),
        ("zsh", "#compdef trtllm-hpc", 'eval "$(trtllm-hpc completion zsh)"'),
        ("fish", "function _trtllm_hpc_completion", "trtllm-hpc completion fish | source"),
    ],
)
def test_the_script_for_a_shell_ends_with_how_to_install_it(
    types: Types, shell: str, begin: str, installed: str
) -> None:
    code, output, _ = types("completion", shell)
    assert code == 0 and output.startswith(begin) and f"_TRTLLM_HPC_COMPLETE={shell}_complete" in output
    *_, first, second = output.splitlines()
    assert first.startswith("# ") and second.startswith("# ") and installed in first
