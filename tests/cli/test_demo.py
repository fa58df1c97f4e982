"""``trtllm-hpc demo``: without Slurm and a package index, what is left of it, and what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.typed import Types
from tests.cli.typed import home as home
from trtllm_hpc.cli import demo
from trtllm_hpc.errors import ExitCode


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, and a package index, without anything in them."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path / "home"


def typed(*words: str) -> str:
    """Type a command in a process of its own, as its jobs outlive it; return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "trtllm_hpc", *words], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.triton
@pytest.mark.thorough
def test_without_slurm_and_index_random_weights_are_served_and_everything_is_removed(
    home: Path, own_home: Path
) -> None:
    shown = typed("demo", "--local")
    assert "The download failed, so random weights answer, with nonsense (pip could not download" in shown
    answers = shown.partition("== The demo in five answers\n")[2].splitlines()
    assert len(answers) < 24
    titles = [line[:8].rstrip() for line in answers if line[:1].strip()]
    assert titles == ["served", "how fast", "report", "next", "remove"]
    [report] = [line.partition("report")[2].strip() for line in answers if line.startswith("report")]
    assert Path(report).is_file()
    assert "serving: " in typed("status", "tiny-llama")
    assert "removed: " in typed("demo", "--remove")
    assert list(home.iterdir()) == [] and not (own_home / ".local/share/trtllm-hpc/demo").exists()
    assert typed("demo", "--remove") == "The demo has made nothing: nothing to do\n"


def test_what_the_demo_needs_is_named_with_the_command_that_installs_it(
    types: Types, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_MODULES", "click no_torch")
    refused = types("demo", "--local")
    assert refused.code == ExitCode.INTERNAL
    assert "modules that are missing: no_torch." in refused.errors and "next: pip install" in refused.errors
