"""`sandbox up --install` brings packages and starts no service."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.sandbox.conftest import Commands
from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox import requirements


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "policy-rc.d"
    monkeypatch.setattr(requirements, "POLICY", path)
    monkeypatch.setattr(requirements, "SET_ASIDE", tmp_path / "policy-rc.d.before")
    monkeypatch.setattr(requirements, "LOG", tmp_path / "install.log")
    return path


def asks(policy: Path) -> int:
    """Exit code of the policy: 101 forbids, 0 allows."""
    done = subprocess.run([str(policy), "mariadb", "start"], check=False, env={"PATH": "/usr/bin:/bin"})
    return done.returncode


@pytest.mark.usefixtures("as_root")
def test_apt_get_runs_while_services_are_held_back(
    commands: Commands, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.add(*requirements.COMMANDS, *requirements.OPTIONAL)
    monkeypatch.setattr(requirements, "LIBRARIES", {"/nowhere/libpmix.so": "libpmix-dev"})
    commands.add("apt-get", script=f"PATH=/usr/bin:/bin {policy} mariadb start; [ $? = 101 ]")
    assert requirements.install_missing(tell=lambda _: None) == ["libpmix-dev"]
    assert [call.split()[-1] for call in commands.called] == ["update", "libpmix-dev", "libpmix-dev"]
    assert all(" -s " in call or "update" in call for call in commands.called[:2])
    assert "Dir::Etc::Preferences=" in commands.called[-1], "what is installed is not upgraded"
    assert all("apt-get" in call for call in commands.called)
    assert not policy.exists()


@pytest.mark.usefixtures("as_root", "policy")
def test_an_upgrade_without_which_nothing_can_be_installed_is_named(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "missing_packages", lambda **_: ["libpmix-dev"])
    script = """case "$*" in *-s*Preferences*) exit 100;; esac
echo 'Inst perl-base [5.36.0-7] (5.36.0-7+deb12u4 Debian)'
echo 'Inst libpmix-dev (4.2)'"""
    commands.add("apt-get", script=script)
    steps: list[str] = []
    requirements.install_missing(tell=steps.append)
    assert steps[-1] == "they need newer versions of perl-base"
    assert "Preferences" not in commands.called[-1] and commands.called[-1].endswith("libpmix-dev")
    assert "Inst" in requirements.LOG.read_text(), "not on the screen"


@pytest.mark.usefixtures("as_root", "policy")
def test_an_installation_says_now_and_then_how_far_it_is(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "PROGRESS_S", 0.05)
    go_on = requirements.LOG.with_name("go-on")
    commands.add("apt-get", script=f"echo Unpacking perl\nwhile [ ! -e {go_on} ]; do /bin/sleep 0.02; done")
    steps: list[str] = []

    def tell(step: str) -> None:
        steps.append(step)
        if "Unpacking" in step:
            go_on.touch()

    monkeypatch.setattr(requirements, "captured", lambda *_: subprocess.CompletedProcess([], 0))
    monkeypatch.setattr(requirements, "missing_packages", lambda **_: ["perl"])
    requirements.install_missing(tell=tell)
    assert any(step.startswith("apt-get, for ") and step.endswith("Unpacking perl") for step in steps)


@pytest.mark.usefixtures("as_root", "policy")
def test_nothing_is_run_when_nothing_is_missing(commands: Commands) -> None:
    commands.add(*requirements.COMMANDS, *requirements.OPTIONAL, "apt-get")
    assert requirements.install_missing(tell=lambda _: None) == []
    assert commands.called == []


@pytest.mark.usefixtures("as_root", "policy")
def test_what_only_some_jobs_need_is_installed_but_not_missed(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.add(*requirements.COMMANDS, "apt-get")
    monkeypatch.setattr(requirements, "LIBRARIES", {})
    requirements.check_packages()
    assert requirements.install_missing(tell=lambda _: None) == ["haproxy"]


@pytest.mark.usefixtures("as_root")
def test_a_policy_that_was_there_is_put_back_even_after_a_failure(commands: Commands, policy: Path) -> None:
    policy.write_text("#!/bin/sh\nexit 104\n")
    policy.chmod(0o755)
    commands.add("apt-get", script="exit 100")
    with pytest.raises(SandboxError, match="apt-get failed with exit code 100") as error:
        requirements.install_missing(tell=lambda _: None)
    assert error.value.hint is not None and error.value.hint.startswith("apt-get")
    assert asks(policy) == 104


@pytest.mark.usefixtures("as_root", "commands")
def test_a_machine_without_apt_get_is_told_so() -> None:
    with pytest.raises(SandboxError, match="no apt-get"):
        requirements.install_missing(tell=lambda _: None)


@pytest.mark.parametrize("before", [None, 104])
def test_a_policy_left_by_a_killed_install_no_longer_forbids(
    before: int | None, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is not None:
        policy.write_text(f"#!/bin/sh\nexit {before}\n")
        policy.chmod(0o755)
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setattr(os, "getpid", lambda: gone.pid)
    with requirements.services_held_back():
        assert asks(policy) == (before or 0)
