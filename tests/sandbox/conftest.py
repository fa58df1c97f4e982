from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtllm_hpc.sandbox import hosts, processes, requirements, sandbox


class Commands:
    """The only commands that can be found while a test runs.

    Each writes its arguments down and does what the test says. Any other
    command is not there, so that nothing real is run by mistake.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journal = folder / "journal"

    def add(self, *names: str, script: str = "") -> None:
        for name in names:
            path = self._folder / name
            path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self._journal}\n{script}\n')
            path.chmod(0o755)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink()

    @property
    def called(self) -> list[str]:
        return self._journal.read_text().splitlines() if self._journal.exists() else []


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(processes, "ADMIN_FOLDERS", ())
    monkeypatch.setattr(requirements, "LIBRARIES", {})
    return Commands(folder)


@pytest.fixture
def root_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /run/trtllm-hpc."""
    folder = tmp_path / "run" / "trtllm-hpc"
    monkeypatch.setattr(hosts, "ROOT", folder)
    monkeypatch.setattr(sandbox, "ROOT", folder)
    return folder


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
