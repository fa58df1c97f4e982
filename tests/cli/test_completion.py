"""What the shell offers when Tab is pressed."""

from __future__ import annotations

from pathlib import Path

from click.shell_completion import ShellComplete

from tests.cli.typed import home as home
from tests.runs.test_find import make
from trtllm_hpc.cli import command

_COMPLETE = ShellComplete(command, {}, "trtllm-hpc", "_TRTLLM_HPC_COMPLETE")


def offered(*words: str, incomplete: str = "") -> list[str]:
    return [item.value for item in _COMPLETE.get_completions(list(words), incomplete)]


def test_run_ids(home: Path) -> None:
    make(home / "runs" / "llama-1", "llama", 10)
    make(home / "elsewhere" / "falcon-1", "falcon", 0)
    assert offered("status") == ["latest", "llama-1"]
    assert offered("cancel", incomplete="ll") == ["llama-1"]
    assert offered("status", "--runs", "elsewhere") == ["latest", "falcon-1"]
    assert "submit" in offered(incomplete="sub")


def test_profiles_and_job_files_and_what_the_shell_lists() -> None:
    listed, *profiles = _COMPLETE.get_completions(["submit", "job.yaml", "--cluster"], "")
    assert listed.type == "file"
    assert {"local", "sandbox"} <= {item.value for item in profiles}
    assert offered("render", incomplete="tiny-llama-") == ["tiny-llama-", "tiny-llama-1rank"]


def test_releases_programs_families_and_checks() -> None:
    assert offered("versions", "show", incomplete="0.16") == ["0.16.0"]
    assert offered("versions", "show", incomplete="24.12") == ["24.12"]
    assert offered("versions", "show", "0.16", incomplete="trtllm-b") == ["trtllm-build"]
    assert offered("versions", "show", "0.16", "build.py", "--family", incomplete="mixt") == ["mixtral"]
    assert offered("submit", "job.yaml", "--ignore", incomplete="model-") == ["model-divides", "model-files"]


def test_keys_of_set() -> None:
    assert offered("submit", "job.yaml", "--set", incomplete="serve.no") == ["serve.nodes="]
    assert "cluster.partition=" in offered("render", "job.yaml", "--set", incomplete="cluster.part")
