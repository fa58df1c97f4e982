"""Runs with a proxy from their start to their end, on the local profile: what fails, and what is given."""

from __future__ import annotations

import json
import re
import select
import shutil
import socket
import ssl
import subprocess
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
from tests.prometheus import collector, needs_prometheus, prometheus, samples, targets
from tests.proxies import ask
from tests.schemas.check import documented
from tests.waiting import eventually
from trtllm_hpc.client.single_calls import not_ready
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.errors import ExitCode, RequestFailed, StartFailed
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.certificate import take_certificate
from trtllm_hpc.runtime.records import Endpoint, RankRecord, read_events

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


def test_a_missing_haproxy_is_told_with_what_to_do(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps({"name": "here", "serve": PROXY}))
    words = ("--cluster", "local", "--runs", tmp_path / "runs", "--set", "cluster.haproxy=/no/such/haproxy")
    answer = types("submit", job, *words)
    assert answer.returncode == ExitCode.CONFIG, answer.stderr
    assert "there is no program '/no/such/haproxy'" in answer.stderr
    assert "or set serve.proxy to none" in answer.stderr


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
    with pytest.raises(RequestFailed, match="401"):
        by_grpc(theirs)
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


@pytest.mark.thorough
def test_a_given_certificate_is_shown_and_trusted_alone(tmp_path: Path) -> None:
    given = signed_certificate(tmp_path, "proxy.cluster.example")
    serve = {**PROXY, "tls": True, "certificate": str(given)}
    _, run = submit(tmp_path, engine=built(1), serve=serve, companion={"enabled": False})
    try:
        assert eventually(lambda: run.endpoint.exists(), 60), state(run)
        endpoint = Endpoint.read(run.endpoint)
        assert endpoint is not None
        shown = ssl.get_server_certificate((endpoint.address, endpoint.http_port))
        assert shown == (tmp_path / "proxy.crt").read_text()
        few = (
            "--requests",
            "4",
            "--concurrency",
            "2",
            "--set",
            "min_requests=1",
            "--set",
            "min_window_seconds=0",
        )
        for words in (
            ("client", run.folder, "--prompt", "Hello", "--max-tokens", "4"),
            ("client", run.folder, "--prompt", "Hello", "--max-tokens", "4", "--protocol", "openai"),
            ("bench", "run", run.folder, *few, "--protocol", "grpc"),
            ("bench", "run", run.folder, *few, "--protocol", "http"),
            ("metrics", run.folder),
        ):
            answer = types(*words)
            assert answer.returncode == 0, (words, answer.stdout, answer.stderr)
        told = types("status", run.folder).stdout
        assert f"SHA-256 {endpoint.fingerprint}" in told, told
        # Another one by the same signer, for the same name, is not the proxy's.
        other = signed_certificate(tmp_path, "proxy.cluster.example", name="other", with_authority=False)
        run.certificate.write_text((tmp_path / "other.crt").read_text())
        assert other.exists() and not_ready(endpoint, 5.0)
        key = re.findall(r"KEY-----\n(.+)\n", given.read_text())[0].encode()
        files = [file for file in run.folder.rglob("*") if file.is_file() and not file.is_symlink()]
        assert [file for file in files if key in file.read_bytes()] == []
    finally:
        types("cancel", run.folder)
    assert eventually(lambda: leftovers(run) == [], 15), leftovers(run)


def signed_certificate(
    folder: Path, domain: str, *, name: str = "proxy", with_authority: bool = True
) -> Path:
    """A certificate signed by an authority of the test's own, with its chain and key in one file."""
    if with_authority:
        made = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=authority")
        openssl(folder, *made, "-keyout", "authority.key", "-out", "authority.crt")
    asked = ("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=proxy")
    openssl(folder, *asked, "-keyout", f"{name}.key", "-out", f"{name}.csr")
    (folder / "names").write_text(f"subjectAltName=DNS:{domain}\n")
    signer = ("-CA", "authority.crt", "-CAkey", "authority.key", "-CAcreateserial", "-extfile", "names")
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signer, "-out", f"{name}.crt")
    whole = folder / f"{name}.pem"
    parts = (f"{name}.crt", "authority.crt", f"{name}.key")
    whole.write_text("".join((folder / part).read_text() for part in parts))
    return whole


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize(("part", "lacks"), [("proxy.crt", "private key"), ("proxy.key", "certificate")])
def test_half_a_certificate_is_told(tmp_path: Path, part: str, lacks: str) -> None:
    signed_certificate(tmp_path, "proxy.cluster.example")
    with pytest.raises(StartFailed, match=f"{part} holds no {lacks}"):
        take_certificate(RunPaths(tmp_path / "run"), tmp_path / part)


@pytest.mark.thorough
def test_a_run_that_is_done_ends_at_once(tmp_path: Path) -> None:
    answer, run = submit(tmp_path, "--wait", engine=built(1), serve=PROXY)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    times = {event.name: event.time for event in read_events(run, "serve")}
    # Triton waits 30 s for connections that stay open.
    assert times["stage_end"] - times["server_stop"] < 20
    assert RankRecord.read(run.rank_record("serve", 0)).exit_code == 0  # type: ignore[union-attr]
    assert eventually(lambda: leftovers(run) == [], 15), leftovers(run)


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


# Prometheus and OpenTelemetry ---------------------------------------------------------------------


@needs_prometheus
def test_prometheus_scrapes_all_through_the_proxy_and_a_trace_goes_through_to_triton(tmp_path: Path) -> None:
    """A real Prometheus over TLS, and a collector that gets the spans of the real Triton."""
    with collector() as spans:
        serve = {**PROXY, "tls": True, "tracing": {"endpoint": spans.url}}
        _, run = submit(tmp_path, engine=built(1), serve=serve, companion={"enabled": False})
        assert eventually(lambda: run.endpoint.exists(), 60), state(run)
        endpoint = Endpoint.read(run.endpoint)
        assert endpoint is not None
        port = urlsplit(endpoint.openai_url or "").port or 0
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        asked = {"model": "stand-in", "prompt": "Hello", "max_tokens": 1}
        traced = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        assert status_of(endpoint, port, "POST", "/v1/completions", asked, traced) == 200
        assert eventually(lambda: any(trace.encode() in body for body in spans.bodies), 30)

        folder = tmp_path / "monitoring"
        words: list[str | Path] = ["metrics", "--prometheus", folder, "--runs", run.folder.parent]
        assert "1 run; have Prometheus reload it" in types(*words).stdout
        assert "no change" in types(*words).stdout
        with prometheus(folder / "trtllm-hpc.yml", folder) as ask:
            parts = ("triton", "gateway", "proxy")
            assert targets(ask) == {(part, "0"): "up" for part in parts}
            [counted] = samples(ask, 'trtllm_hpc_gateway_requests_total{status="200"}')
            assert (counted["run"], counted["route"]) == (run.run_id, "/v1/completions")
            [ready] = samples(ask, 'haproxy_server_status{proxy="http",server="instance0",state="UP"}')
            assert (ready["part"], ready["value"]) == ("proxy", "1")
            counts = samples(ask, "nv_inference_count")
            assert ("stand-in", "tensorrt_llm") in {(one["model"], one["exported_model"]) for one in counts}
        types("cancel", run.folder)
        assert eventually(lambda: leftovers(run) == [], 15), leftovers(run)
    assert "0 runs; have Prometheus reload it" in types(*words).stdout
