"""`sandbox root` makes a root file system, whole or not at all; `up --root` and `enter` take no other."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.sandbox.conftest import Commands
from tests.sandbox.test_refusals import Refused, refused
from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox import requirements
from trtllm_hpc.sandbox.root import script

__all__ = ["refused"]

PACKAGES = {*requirements.COMMANDS.values(), *requirements.OPTIONAL.values()}


@pytest.fixture
def installer(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the script calls, with a mirror and a proxy in apt's configuration. debootstrap makes two folders.

    Returns where debootstrap wrote down its proxy.
    """
    monkeypatch.setattr(requirements, "LOG", tmp_path / "install.log")
    proxy = tmp_path / "proxy"
    for name in ("chmod", "dirname", "head", "mkdir", "mv"):
        commands.add(name, script=f'exec /usr/bin/{name} "$@"')
    # What a command runs in: fakes of namespaces, which the tests of `make test-trixie` really make.
    commands.add("setpriv", script='shift 2; exec "$@"')
    commands.add("unshare", script='while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"')
    commands.add(
        "bash",
        script='case $1 in */enter.sh) shift 2; shift $(($1 + 1));; *) set /bin/bash "$@";; esac; exec "$@"',
    )
    commands.add(
        "apt-get", script='[ "$1" != indextargets ] || printf "http://mirror/debian/\\nhttp://other/\\n"'
    )
    commands.add(
        "apt-config",
        script='case $* in *::http::*) echo http://proxy:3128;; *::https::*) ;; *) echo "Acquire;";; esac',
    )
    made = 'mkdir -p "$4/etc/apt/apt.conf.d" "$4/usr/sbin"'
    commands.add("debootstrap", script=f'echo "$http_proxy,$https_proxy" >{proxy}\n{made}')
    return proxy


@pytest.mark.usefixtures("as_root")
def test_the_mirror_and_the_proxy_are_those_of_apts_configuration(
    commands: Commands, installer: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "roots" / "trixie"
    assert requirements.make_root(folder, "trixie", tell=lambda _: None)
    [debootstrap] = [call.split() for call in commands.called if call.startswith("debootstrap ")]
    assert debootstrap[-3:] == ["trixie", f"{folder}.partial", "http://mirror/debian/"]
    assert installer.read_text() == "http://proxy:3128,\n"
    assert (folder / "etc/apt/apt.conf.d/00machine").read_text() == "Acquire;\n"
    [installed] = [call.split() for call in commands.called if call.startswith("apt-get -q install ")]
    assert {*installed} > PACKAGES
    policy = folder / "usr/sbin/policy-rc.d"
    assert subprocess.run([policy, "mariadb", "start"], check=False).returncode == 101
    assert [file.name for file in folder.parent.iterdir()] == ["trixie"]


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("failing", ["debootstrap", "apt-get"])
def test_a_step_that_fails_leaves_no_folder(
    failing: str, commands: Commands, installer: Path, tmp_path: Path
) -> None:
    broken = 'case "$*" in *install*) exit 100;; indextargets*) echo http://mirror/;; esac'
    made = 'mkdir -p "$4/etc"; exit 1'
    commands.add(failing, script=broken if failing == "apt-get" else made)
    with pytest.raises(SandboxError, match="debootstrap failed with exit code"):
        requirements.make_root(tmp_path / "roots" / "trixie", "trixie", tell=lambda _: None)
    assert list((tmp_path / "roots").iterdir()) == []
    assert installer.exists() == (failing == "apt-get")


@pytest.mark.usefixtures("as_root", "installer")
def test_without_a_mirror_in_apts_configuration_the_option_is_named(
    commands: Commands, tmp_path: Path
) -> None:
    commands.add("apt-get")
    with pytest.raises(SandboxError, match="name one with --mirror"):
        requirements.make_root(tmp_path / "trixie", "trixie", tell=lambda _: None)
    assert not any(call.startswith("debootstrap") for call in commands.called)


@pytest.mark.usefixtures("as_root", "installer")
def test_debootstrap_is_named_or_installed(commands: Commands, refused: Refused, tmp_path: Path) -> None:
    commands.remove("debootstrap")
    said = refused("root", str(tmp_path / "trixie"))
    assert "debootstrap" in said and "--install, or apt-get install debootstrap" in said
    assert commands.called == []


@pytest.mark.usefixtures("as_root", "installer")
def test_a_complete_folder_is_left_alone_and_another_one_refused(commands: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "trixie" / "usr" / "bin"
    folder.mkdir(parents=True)
    with pytest.raises(SandboxError, match=r"is not a root file system with .*slurmctld"):
        requirements.make_root(tmp_path / "trixie", "trixie", tell=lambda _: None)
    for command in (*requirements.COMMANDS, "python3"):
        (folder / command).symlink_to(f"/etc/alternatives/{command}")  # leads nowhere from outside
    assert not requirements.make_root(tmp_path / "trixie", "trixie", tell=lambda _: None)
    assert commands.called == []


@pytest.mark.parametrize("words", [("root", "/x"), ("enter", "/"), ("up", "--root", "/x")])
def test_an_ordinary_user_can_neither_make_nor_enter_one(
    words: tuple[str, ...], commands: Commands, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "Only root can" in refused(*words)
    assert commands.called == []


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("verb", [("up", "--root"), ("enter",)])
def test_a_folder_without_slurm_is_no_root(verb: tuple[str, ...], refused: Refused, tmp_path: Path) -> None:
    said = refused(*verb, str(tmp_path))
    assert "slurmctld" in said and "sandbox root FOLDER" in said


def test_the_scripts_pass_shellcheck() -> None:
    scripts = [script(name) for name in ("enter.sh", "make-root.sh")]
    done = subprocess.run(["shellcheck", *scripts], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
