"""Inviting colleagues to a run that does not serve yet; with a proxy: tests/local/test_proxy_runs.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.made import written
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.guests import ProxyClient, clients_of, invite, revoke
from trtllm_hpc.runtime.records import guest_keys


def key_of(run: RunPaths) -> tuple[Path, float | None]:
    [guest] = clients_of(run)
    assert guest.key_file is not None and not guest.admitted
    return Path(guest.key_file), guest.expires_at


def test_a_guest_gets_a_key_and_loses_it(tmp_path: Path) -> None:
    _, run = written(tmp_path / "run")
    invite(run, "alice", 60)
    file, expires_at = key_of(run)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert expires_at is not None
    assert clients_of(run) == (ProxyClient("alice", 0, None, str(file), expires_at),)
    assert guest_keys(run, expires_at) == {}
    assert guest_keys(run, expires_at - 1) == {file.read_text().strip(): "alice"}
    with pytest.raises(ConfigError, match="alice has a key already") as caught:
        invite(run, "alice", None)
    assert "--revoke alice" in (caught.value.diagnostics[0].hint or "")
    revoke(run, "alice")
    assert clients_of(run) == () and not file.exists() and guest_keys(run, 0.0) == {}
    with pytest.raises(ConfigError, match="'alice' is not a guest; invited: nobody"):
        revoke(run, "alice")


@pytest.mark.parametrize("name", ["", "owner", "anybody", "a b", "../a", "a\n", "ä"])
def test_names_that_a_guest_cannot_have(tmp_path: Path, name: str) -> None:
    _, run = written(tmp_path / "run")
    with pytest.raises(ConfigError, match="cannot be the name of a guest"):
        invite(run, name, None)


def test_a_run_without_a_proxy_has_no_guests(tmp_path: Path) -> None:
    _, run = written(tmp_path / "run", {"serve": {"proxy": "none"}})
    with pytest.raises(ConfigError, match="no proxy that asks for a key"):
        invite(run, "alice", None)
