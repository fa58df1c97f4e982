"""Commands as a person types them: the whole command line, in the test's process, in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from trtllm_hpc.cli import main


class Typed(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    output: str
    errors: str


Types = Callable[..., Typed]


@pytest.fixture
def types(capsys: pytest.CaptureFixture[str]) -> Types:
    """Type the words of a command."""

    def type_it(*words: str) -> Typed:
        with pytest.raises(SystemExit) as end:
            main(words)
        assert isinstance(end.value.code, int)
        return Typed(end.value.code, *capsys.readouterr())

    return type_it


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with a space in its name."""
    folder = tmp_path / "my work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TRTLLM_HPC_RUNS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return folder
