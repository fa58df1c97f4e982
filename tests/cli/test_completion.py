"""What the shell offers when Tab is pressed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
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


def test_profiles_and_job_files(home: Path) -> None:
    (home / "site.yaml").write_text("name: site\n")
    (home / "notes.txt").write_text("")
    (home / ".hidden.yaml").write_text("")
    (home / "jobs").mkdir()
    (home / "jobs" / "a b.yml").write_text("name: a\n")
    profiles = offered("submit", "job.yaml", "--cluster")
    assert {"local", "sandbox", "site.yaml", "jobs/"} <= set(profiles)
    assert not {"notes.txt", ".hidden.yaml", "tiny-llama"} & set(profiles)
    assert offered("render", "job.yaml", "--cluster", incomplete="si") == ["site.yaml"]
    assert "tiny-llama" in offered("render", incomplete="tiny")
    assert offered("render", incomplete="jobs/") == ["jobs/a b.yml"]
    assert offered("render", incomplete="none/") == []


def test_releases_programs_families_checks_and_templates() -> None:
    assert offered("versions", "show", incomplete="0.16") == ["0.16.0"]
    assert offered("versions", "show", incomplete="24.12") == ["24.12"]
    assert offered("versions", "show", "0.16", incomplete="trtllm-b") == ["trtllm-build"]
    assert offered("versions", "show", "0.16", "build.py", "--family", incomplete="mixt") == ["mixtral"]
    assert offered("submit", "job.yaml", "--ignore", incomplete="model-") == ["model-divides", "model-files"]
    assert offered("templates", "show", "job.yaml", incomplete="post") == ["postprocessing"]


def test_keys_of_set() -> None:
    assert offered("submit", "job.yaml", "--set", incomplete="serve.no") == ["serve.nodes="]
    assert "cluster.partition=" in offered("render", "job.yaml", "--set", incomplete="cluster.part")


def in_bash(home: Path, *words: str) -> list[str]:
    """What bash puts in place of the last of ``words``, as bash itself splits them."""
    (home / "bin").mkdir(exist_ok=True)
    program = home / "bin" / "trtllm-hpc"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m trtllm_hpc "$@"\n')
    program.chmod(0o755)
    script = """
        eval "$(_TRTLLM_HPC_COMPLETE=bash_source trtllm-hpc)"
        compopt() { :; }
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _trtllm_hpc_completion trtllm-hpc
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script, "bash", "trtllm-hpc", *words],
        env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.long
def test_bash_completes_words_that_it_splits(home: Path) -> None:
    """bash splits words at ``:`` and ``=`` and replaces the last piece only."""
    run = make(home / "runs" / "llama-1", "llama", 10)
    run.results.mkdir(exist_ok=True)
    for name in ("sweep", "benchmark"):
        run.measurement(name).requests.write_text("")
    assert in_bash(home, "report", "llama-1", ":", "sw") == ["sweep"]
    assert sorted(in_bash(home, "report", "llama-1", ":")) == ["benchmark", "sweep"]
    assert in_bash(home, "report", "llama-1:sw") == ["llama-1:sweep"], "where COMP_WORDBREAKS lacks the colon"
    assert in_bash(home, "submit", "job.yaml", "--set", "serve.no") == ["serve.nodes="]
    assert in_bash(home, "submit", "job.yaml", "--cluster", "=", "sandb") == ["sandbox"]
