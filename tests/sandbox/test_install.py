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
    assert [call.split()[-1] for call in commands.called] == ["update", "libpmix-dev"]
    assert not policy.exists()


@pytest.mark.usefixtures("as_root", "policy")
def test_what_only_some_jobs_need_is_installed_but_not_missed(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.add(*requirements.COMMANDS, "apt-get")
    monkeypatch.setattr(requirements, "LIBRARIES", {})
    requirements.check_packages()
    assert requirements.install_missing(tell=lambda _: None) == ["haproxy"]


@pytest.mark.usefixtures("as_root")
def test_a_policy_that_was_there_stays_even_after_a_failure(commands: Commands, policy: Path) -> None:
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


def test_a_policy_left_by_a_killed_install_no_longer_forbids(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: gone.pid)
        with requirements.services_held_back():
            left = policy.read_text()
            assert asks(policy) == 0
    policy.write_text(left)  # as a killed install does
    with requirements.services_held_back():
        assert asks(policy) == 101
    assert not policy.exists()
