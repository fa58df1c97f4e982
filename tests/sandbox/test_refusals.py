"""Where a sandbox cannot start, it says why and what to type, and leaves nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sandbox.conftest import Commands
from trtllm_hpc.cli import main
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.sandbox import requirements

Refused = Callable[..., str]
"""What the command line says on standard error when it refuses these arguments, and leaves nothing."""


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], root_folder: Path) -> Refused:
    def said(*arguments: str, code: ExitCode = ExitCode.SANDBOX_IMPOSSIBLE) -> str:
        with pytest.raises(SystemExit) as left:
            main(["sandbox", *arguments])
        assert left.value.code == code
        assert not root_folder.exists()
        said = capsys.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        return said.err

    return said


@pytest.mark.parametrize("verb", ["up", "down"])
def test_an_ordinary_user_cannot_start_or_stop_one(
    verb: str, commands: Commands, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said = refused(verb)
    assert "Only root" in said
    assert "--cluster local" in said
    assert commands.called == []


@pytest.mark.usefixtures("as_root")
def test_missing_packages_are_named_with_the_command_that_brings_them(
    commands: Commands, refused: Refused
) -> None:
    commands.add(*requirements.COMMANDS.keys() - {"munge", "munged", "slurmdbd"})
    said = refused("up")
    assert "munge, slurmdbd" in said
    assert "apt-get install --no-install-recommends -y munge slurmdbd" in said
    assert "sandbox up --install" in said
    assert commands.called == []


@pytest.mark.usefixtures("as_root")
def test_what_the_kernel_refuses_is_named(commands: Commands, refused: Refused) -> None:
    commands.add(*requirements.COMMANDS)
    commands.add("unshare", script="echo 'Operation not permitted' >&2\nexit 1")
    said = refused("up")
    assert "does not permit namespaces" in said and "Operation not permitted" in said
    assert "privileged container" in said
    assert {call.split()[0] for call in commands.called} == {"unshare"}


def test_another_system_than_linux_is_refused(
    commands: Commands, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert "darwin" in refused("up")
    assert commands.called == []


@pytest.mark.parametrize("name", ["", "Default", "../x", "-a", "x" * 33, "a\nb"])
def test_names_that_cannot_be_host_names_are_refused(name: str, refused: Refused) -> None:
    assert "cannot be the name of a sandbox" in refused("status", "--name", name, code=ExitCode.SANDBOX)


def test_the_status_of_no_sandbox_is_down(root_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["sandbox", "status", "--name", "no-such-one"])
    assert left.value.code == ExitCode.SANDBOX
    said = capsys.readouterr().out
    assert "no-such-one: down" in said
    assert "trtllm-hpc sandbox up --name no-such-one" in said
    assert not root_folder.exists()
