"""Runs with a proxy from their start to their end, on the local profile: what fails, and what is given."""

from __future__ import annotations

import re
import select
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.other_users import open_proxy, ready_server
from tests.guests import SOON_S, asking_until_refused
from tests.proxies import ask
from tests.schemas.check import documented
from tests.waiting import eventually
from trtllm_hpc.client.single_calls import not_ready
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.errors import ExitCode, RequestFailed
from trtllm_hpc.runtime.records import Endpoint, read_events

from .test_local_profile import built, leftovers, state, submit, types
from .test_proxy import PROXY

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed (.ci/test does)"),
]


TAKES_THE_PORT = """
import os, socket, sys
place = (os.environ["TRTLLM_HPC_ADDRESS"], int(os.environ["TRTLLM_HPC_PORT_GRPC"]))
taken = socket.create_server(place)
taken.set_inheritable(True)
os.execvp("haproxy", ["haproxy", *sys.argv[1:]])
"""
"""HAProxy in a moment in which somebody else was faster: the listening socket stays open beside it."""


def test_a_port_of_the_proxy_that_is_taken_fails_the_run(tmp_path: Path) -> None:
    program = tmp_path / "haproxy"
    program.write_text(f"#!{sys.executable}\n{TAKES_THE_PORT}")
    program.chmod(0o755)
    words = ("--set", f"cluster.haproxy={program}")
    _, run = submit(tmp_path, *words, engine=built(1), serve=PROXY, companion={"enabled": False})
    assert eventually(lambda: state(run) == "failed", 60), state(run)
    status = documented("status", types("status", run.folder, "--json").stdout)
    assert status["exit_code"] == ExitCode.START
    assert "the proxy (HAProxy) ended by itself, with exit code 1" in status["sentence"]
    [cause] = [one for one in status["causes"] if one["id"] == "process-port"]
    assert re.search(r"has taken the port 127\.0\.0\.1:\d+\.$", cause["sentence"]), cause
    assert "trtllm-hpc resume" in cause["next"]
    assert eventually(lambda: leftovers(run) == [], 15), leftovers(run)


def test_a_server_that_fails_at_its_start_is_told(tmp_path: Path) -> None:
    words = ("--set", "cluster.triton.server=/bin/false")
    _, run = submit(tmp_path, *words, engine=built(1), serve=PROXY, companion={"enabled": False})
    assert eventually(lambda: state(run) == "failed", 60), state(run)
    status = documented("status", types("status", run.folder, "--json").stdout)
    assert status["exit_code"] == ExitCode.START
    assert re.search("rank 0 on .* died: exit code 1", status["sentence"]), status["sentence"]
    assert [one["state"] for one in status["instances"]] == ["failed"]
    assert "Traceback" not in run.batch_log("serve").read_text()
    assert eventually(lambda: leftovers(run) == [], 15), leftovers(run)


def test_guests_are_named_until_a_key_is_revoked_or_expires_and_then_nobody_asks(tmp_path: Path) -> None:
    serve = {**PROXY, "tls": True, "idle_minutes": 0.25}
    _, run = submit(tmp_path, engine=built(1), serve=serve, companion={"enabled": False})
    assert eventually(lambda: run.endpoint.exists(), 60), state(run)
    endpoint = Endpoint.read(run.endpoint)
    assert endpoint is not None
    web, openai_port = endpoint.http_port, urlsplit(endpoint.openai_url or "").port or 0
    asks = ("POST", "/v2/models/ensemble/generate", {"text_input": "Hello", "max_tokens": 1})
    chats = ("POST", "/v1/completions", {"model": "stand-in", "prompt": "Hello", "max_tokens": 1})
    of_bob = replace(endpoint, key_file=str(run.guest_key("bob")))

    def row(name: str) -> dict[str, Any]:
        rows = documented("endpoint", types("endpoint", run.folder, "--invited", "--json").stdout)
        return next(dict(it) for it in rows if it["name"] == name)

    with asking_until_refused(
        partial(is_answered, lambda: status_of(of_bob, openai_port, *chats) == 200),
        partial(is_answered, partial(by_grpc, of_bob)),
    ) as refused:
        assert types("endpoint", run.folder, "--invite", "bob", "--expires", "0.1m").returncode == 0
        expires_at = row("bob")["expires_at"]
        letter = types("endpoint", run.folder, "--invite", "alice")
        key = run.guest_key("alice").read_text().strip()
        assert "cat alice.key" in letter.stdout and key not in letter.stdout, letter
        theirs = replace(endpoint, key_file=str(run.guest_key("alice")))
        kept = tmp_path / "alice.key"
        shutil.copy(run.guest_key("alice"), kept)
        assert (status_of(theirs, web, *asks), status_of(theirs, openai_port, *chats)) == (200, 200)
        assert status_of(theirs, web, "POST", "/v2/%6cogging", {}) == 403
        assert status_of(theirs, openai_port, "GET", "/docs") == 403
        assert by_grpc(theirs)
    for moment in (it.result() for it in refused):
        assert expires_at <= moment < expires_at + SOON_S
    assert eventually(lambda: row("alice")["requests"] >= 3, 30), row("alice")
    assert row("bob")["requests"] >= 2 and not row("bob")["admitted"]
    assert "asked by alice: admitted, " in types("status", run.folder).stdout
    assert "guest alice: POST /v2/models/ensemble/generate 200" in run.batch_log("proxy").read_text()
    assert key not in "".join(file.read_text() for file in run.logs.iterdir())
    theirs = replace(endpoint, key_file=str(kept))
    assert types("endpoint", run.folder, "--revoke", "alice").returncode == 0
    assert (status_of(theirs, web, *asks), status_of(theirs, openai_port, *chats)) == (401, 401)
    with pytest.raises(RequestFailed, match="401") as failed:
        by_grpc(theirs)
    assert "--key-file" in (failed.value.hint or "")
    assert eventually(lambda: state(run) == "completed", 60), state(run)
    status = documented("status", types("status", run.folder, "--json").stdout)
    assert status["sentence"].endswith("nobody has asked for 0.25 minutes (serve.idle_minutes)"), status
    events = [it.name for it in read_events(run, "serve") if it.name in ("idle", "server_stop")]
    assert events[-1] == "server_stop"
    assert eventually(lambda: leftovers(run) == [], 15), leftovers(run)


def by_grpc(endpoint: Endpoint) -> bool:
    """Whether the server answers over gRPC whoever has the endpoint's key; raises RequestFailed."""
    with Client(endpoint, "ensemble", protocol="grpc", retries=0) as client:
        return client.generate("Hello", max_tokens=1).text is not None


def is_answered(ask: Callable[[], bool]) -> bool:
    """Whether there is a key, and the proxy lets it in."""
    try:
        return ask()
    except RequestFailed as error:
        assert re.search(r"401|\.key cannot be read", str(error)), error
        return False


def status_of(
    endpoint: Endpoint, port: int, method: str, path: str, body: Any = None, more: Mapping[str, str] = {}
) -> int:
    """The status with which a port of the proxy answers whoever has the endpoint's key."""
    return ask(endpoint, port, method, path, body, {**endpoint.authorization, **more})[0]


def test_with_tls_half_of_the_places_are_kept_for_connections_that_begin_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that send no more than a byte fill the other half for 10 s."""
    monkeypatch.setattr("trtllm_hpc.runtime.proxy.connections", lambda: 40)
    with ready_server() as server, open_proxy(tmp_path, server, tls=True) as proxy, ExitStack() as opened:
        others = [
            opened.enter_context(socket.create_connection((proxy.address, proxy.http_port)))
            for _ in range(60)
        ]
        for other_user in others:
            other_user.sendall(b"\x16")  # so begins TLS; without a byte the kernel keeps them back at first
        assert not_ready(proxy, 30.0) is None
        gone, _, _ = select.select(others, [], [], 0)
        assert len(gone) <= len(others) - 20, "the owner has waited for the slow half"
