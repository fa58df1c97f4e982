"""The door on the local profile: a real HAProxy in front of a real tritonserver, and strangers before it."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.schemas.check import documented
from tests.waiting import eventually
from trtllm_hpc.client.connection import grpc_client
from trtllm_hpc.client.http import is_ready
from trtllm_hpc.errors import ExitCode, StartFailed
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.certificate import take_certificate
from trtllm_hpc.runtime.records import Endpoint, RankRecord, read_events

from .test_local_profile import built, leftovers, state, submit, types

pytestmark = [
    pytest.mark.triton,
    pytest.mark.xdist_group("door"),
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed (.ci/test does)"),
]

DOOR = {"ready_timeout_seconds": 120, "door": "haproxy", "max_request_mib": 1, "restarts": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunPaths]:
    folder = tmp_path_factory.mktemp("door")
    _, paths = submit(folder, engine=built(), serve=DOOR, companion={"enabled": False})
    assert eventually(lambda: paths.endpoint.exists(), 60), state(paths)
    yield paths
    types("cancel", paths.folder)
    assert eventually(lambda: leftovers(paths) == [], 10), leftovers(paths)


@pytest.fixture
def endpoint(run: RunPaths) -> Endpoint:
    found = Endpoint.read(run.endpoint)
    assert found is not None
    return found


def instances(run: RunPaths) -> list[dict[str, Any]]:
    status = documented("status", types("status", run.folder, "--json").stdout)
    found: list[dict[str, Any]] = status["instances"]
    return found


def status_of(port: int, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_runs_own_commands_are_let_in(run: RunPaths) -> None:
    few = (
        "--requests",
        "4",
        "--rate",
        "4",
        "--max-tokens",
        "2",
        "--min-requests",
        "1",
        "--min-window-seconds",
        "0",
    )
    commands = (
        ("client", run.folder, "--prompt", "Hello", "--max-tokens", "4"),
        ("bench", run.folder, *few, "--max-late-share", "1"),
        ("bench", run.folder, *few, "--max-late-share", "1", "--protocol", "http"),
        ("metrics", run.folder),
        ("status", run.folder),
    )
    for command in commands:
        answer = types(*command)
        assert answer.returncode == 0, (command, answer.stdout, answer.stderr)
    summary = documented("bench show", types("bench", "show", run.folder, "--json").stdout)
    assert "metrics" not in json.dumps(summary["verdict"])


CALLS = (
    ("GET", "v2/health/ready"),
    ("GET", "v2/models/tensorrt_llm/stats"),
    ("POST", "v2/models/ensemble/generate"),
    ("POST", "v2/repository/index"),
    ("POST", "v2/repository/models/ensemble/unload"),
    ("POST", "v2/systemsharedmemory/region/x/register"),
    ("POST", "v2/logging"),
    ("POST", "v2/trace/setting"),
)


@pytest.mark.parametrize("key", [None, "", "Bearer", "Bearer wrong", "Basic YTpi"])
def test_without_the_key_nobody_is_let_in(endpoint: Endpoint, key: str | None) -> None:
    headers = {} if key is None else {"Authorization": key}
    for method, path in CALLS:
        assert status_of(endpoint.http_port, method, f"/{path}", headers, b"{}") == 401, path
    assert status_of(endpoint.metrics_port, "GET", "/metrics", headers) == 401


def test_without_the_key_no_call_over_grpc_is_let_in(endpoint: Endpoint) -> None:
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    with InferenceServerClient(endpoint.grpc) as client:
        for call in (client.is_server_live, client.get_model_repository_index, client.get_log_settings):
            with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
                call()


_STRANGER = """
import glob, http.client, json, socket, sys
key_file, sockets, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
found = []
for file in [key_file, *glob.glob(sockets.rsplit('_door', 1)[0] + '*')]:
    try:
        open(file, 'rb').read(1)
        found.append(file)
    except OSError:
        pass
for name in ('http', 'metrics'):
    try:
        socket.socket(socket.AF_UNIX).connect(sockets + '/' + name)
        found.append(name)
    except OSError:
        pass
connection = http.client.HTTPConnection('127.0.0.1', port)
connection.request('GET', '/v2/health/ready')
print(json.dumps([found, connection.getresponse().status]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_another_user_of_the_node_gets_nothing(run: RunPaths, endpoint: Endpoint) -> None:
    [sockets] = Path("/dev/shm").glob(f"trt{endpoint.job_id}_door0_*/0")
    assert (sockets / "http").is_socket()
    words = ["/usr/bin/python3", "-I", "-c", _STRANGER, str(run.key), str(sockets), str(endpoint.http_port)]
    answer = subprocess.run(words, capture_output=True, text=True, user="nobody", cwd="/", check=True)
    assert json.loads(answer.stdout) == [[], 401]


def test_the_key_is_in_one_file_and_nowhere_else(run: RunPaths) -> None:
    types("report", run.folder)
    key = run.key.read_bytes().strip()
    assert len(key) >= 32
    assert stat.S_IMODE(run.key.stat().st_mode) == 0o600
    files = [file for file in run.folder.rglob("*") if file.is_file() and file != run.key]
    assert len(files) > 10
    assert [file for file in files if key in file.read_bytes()] == []
    shown = [types(*words, run.folder).stdout for words in (("status", "--json"), ("logs",))]
    assert not [text for text in shown if key.decode() in text]
    for entry in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                assert key not in (entry / name).read_bytes(), entry
            except OSError:
                continue


@pytest.mark.parametrize(
    ("length", "answer"), [("Content-Length: 2000000", b"413"), ("Transfer-Encoding: chunked", b"411")]
)
def test_a_body_beyond_the_bound_is_refused_before_it_is_sent(
    endpoint: Endpoint, length: str, answer: bytes
) -> None:
    headers = [f"{name}: {value}" for name, value in endpoint.authorization.items()]
    lines = ["POST /v2/models/ensemble/generate HTTP/1.1", "Host: door", *headers, length, "", ""]
    with socket.create_connection((endpoint.address, endpoint.http_port), timeout=10) as connection:
        connection.sendall("\r\n".join(lines).encode())
        assert connection.recv(4096).split()[1] == answer


@pytest.mark.parametrize(
    ("elements", "options", "answer"),
    [
        (10, {}, "not found"),
        # HAProxy resets the stream whose message it does not read; gRPC's library may see only that.
        (1 << 19, {}, "larger than serve.max_request_mib, 1 MiB|CANCELLED.*RST_STREAM"),
        (10, {"compression_algorithm": "gzip"}, "UNIMPLEMENTED.*compressed messages are not taken"),
    ],
)
def test_a_message_over_grpc_is_bounded(
    endpoint: Endpoint, elements: int, options: dict[str, Any], answer: str
) -> None:
    import numpy as np
    from tritonclient.grpc import InferInput
    from tritonclient.utils import InferenceServerException

    tensor = InferInput("x", [elements], "INT32")
    tensor.set_data_from_numpy(np.zeros(elements, np.int32))
    with grpc_client(endpoint) as client, pytest.raises(InferenceServerException, match=answer):
        client.infer("nosuch", [tensor], **options)


def memory_mib(run: RunPaths) -> float:
    """Resident memory of HAProxy and all processes of the server."""
    found = 0.0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words, status = (entry / "cmdline").read_bytes().split(b"\0"), (entry / "status").read_text()
            if any(os.fsencode(run.folder) in word or b"door0_" in word for word in words):
                found += int(re.findall(r"VmRSS:\s*(\d+)", status)[0]) / 1024
    return found


def test_ten_thousand_malformed_requests_harm_nobody(run: RunPaths, endpoint: Endpoint) -> None:
    draw, memory = random.Random(1), [memory_mib(run)]
    beginnings = (
        b"",
        b"GET / HTTP/1.1\r\n",
        b"POST /v2/models/ensemble/generate HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n",
    )
    for number in range(10_000):
        port = (endpoint.http_port, endpoint.grpc_port, endpoint.metrics_port)[number % 3]
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(draw.choice(beginnings) + draw.randbytes(draw.randint(1, 200)) + b"\r\n\r\n")
        if (number + 1) % 2500 == 0:
            memory.append(memory_mib(run))
    headers = endpoint.authorization
    assert status_of(endpoint.http_port, "GET", "/v2/health/ready", headers) == 200
    assert status_of(endpoint.metrics_port, "GET", "/metrics", headers) == 200
    # HAProxy keeps the memory of the most connections that it ever had at once; a leak would grow each time.
    assert memory[0] > 100
    assert min(later - before for before, later in pairwise(memory)) < 5, memory


def test_a_killed_door_is_opened_again(run: RunPaths, endpoint: Endpoint) -> None:
    doors = subprocess.run(["pgrep", "-f", f"haproxy.*{run.door(0)}"], capture_output=True, text=True).stdout
    os.kill(int(doors.split()[0]), signal.SIGKILL)

    def is_open() -> bool:
        try:
            return status_of(endpoint.http_port, "GET", "/v2/health/ready", endpoint.authorization) == 200
        except OSError:
            return False

    restarted = lambda: "door_restarted" in [event.name for event in read_events(run, "serve")]  # noqa: E731
    assert eventually(restarted, 10) and eventually(is_open, 10)


CRASH = {"inputs": [{"name": "input_ids", "datatype": "INT32", "shape": [1, 1 << 40], "data": [1]}]}
"""Triton 2.51 tries to allocate what the shape says, and aborts."""


def test_a_crashed_server_is_started_again_and_told(run: RunPaths, endpoint: Endpoint) -> None:
    path, body = "/v2/models/tensorrt_llm/infer", json.dumps(CRASH).encode()
    assert status_of(endpoint.http_port, "POST", path, {}, body) == 401
    assert instances(run)[0]["restarts"] == 0
    assert status_of(endpoint.http_port, "POST", path, endpoint.authorization, body) == 502
    assert eventually(lambda: instances(run)[0]["restarts"] == 1, 10), instances(run)
    assert "was killed by signal 6" in instances(run)[0]["reason"]
    assert eventually(lambda: instances(run)[0]["state"] == "ready", 60), instances(run)
    answer = types("client", run.folder, "--prompt", "Hello", "--max-tokens", "4")
    assert answer.returncode == 0, answer.stderr


def test_a_door_that_cannot_be_opened_fails_the_run(tmp_path: Path) -> None:
    broken = tmp_path / "haproxy"
    broken.write_text("#!/bin/sh\necho out of order >&2\nexit 3\n")
    broken.chmod(0o755)
    words = ("--set", f"cluster.haproxy={broken}")
    _, run = submit(tmp_path, *words, engine=built(), serve=DOOR, companion={"enabled": False})
    assert eventually(lambda: state(run) == "failed", 60), state(run)
    status = documented("status", types("status", run.folder, "--json").stdout)
    assert status["exit_code"] == ExitCode.START
    assert "the door (HAProxy) ended by itself, with exit code 3" in status["sentence"]
    assert "out of order" in run.batch_log("door").read_text()
    assert eventually(lambda: leftovers(run) == [], 15), leftovers(run)


def test_a_missing_haproxy_is_told_with_what_to_do(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps({"name": "here", "serve": DOOR}))
    words = ("--cluster", "local", "--runs", tmp_path / "runs", "--set", "cluster.haproxy=/no/such/haproxy")
    answer = types("submit", job, *words)
    assert answer.returncode == ExitCode.CONFIG, answer.stderr
    assert "there is no program '/no/such/haproxy'" in answer.stderr
    assert "or set serve.door to none" in answer.stderr


def test_a_server_that_fails_at_its_start_is_told(tmp_path: Path) -> None:
    words = ("--set", "cluster.triton.server=/bin/false")
    _, run = submit(tmp_path, *words, engine=built(), serve=DOOR, companion={"enabled": False})
    assert eventually(lambda: state(run) == "failed", 60), state(run)
    status = documented("status", types("status", run.folder, "--json").stdout)
    assert status["exit_code"] == ExitCode.START
    assert "died first: exit code 1" in status["sentence"], status["sentence"]
    assert [one["state"] for one in status["instances"]] == ["failed"]
    assert "Traceback" not in run.batch_log("serve").read_text()
    assert eventually(lambda: leftovers(run) == [], 15), leftovers(run)


def test_a_given_certificate_is_shown_and_trusted_alone(tmp_path: Path) -> None:
    given = signed_certificate(tmp_path, "door.cluster.example")
    serve = {**DOOR, "tls": True, "certificate": str(given)}
    _, run = submit(tmp_path, engine=built(), serve=serve, companion={"enabled": False})
    try:
        assert eventually(lambda: run.endpoint.exists(), 60), state(run)
        endpoint = Endpoint.read(run.endpoint)
        assert endpoint is not None
        shown = ssl.get_server_certificate((endpoint.address, endpoint.http_port))
        assert shown == (tmp_path / "door.crt").read_text()
        few = ("--requests", "4", "--concurrency", "2", "--min-requests", "1", "--min-window-seconds", "0")
        for words in (
            ("client", run.folder, "--prompt", "Hello", "--max-tokens", "4"),
            ("bench", "run", run.folder, *few, "--protocol", "grpc"),
            ("bench", "run", run.folder, *few, "--protocol", "http"),
            ("metrics", run.folder),
        ):
            answer = types(*words)
            assert answer.returncode == 0, (words, answer.stdout, answer.stderr)
        told = types("status", run.folder).stdout
        assert f"SHA-256 {endpoint.fingerprint}" in told, told
        # Another one by the same signer, for the same name, is not the door's.
        other = signed_certificate(tmp_path, "door.cluster.example", name="other", with_authority=False)
        run.certificate.write_text((tmp_path / "other.crt").read_text())
        assert other.exists() and not is_ready(endpoint, 5.0)
        key = re.findall(r"KEY-----\n(.+)\n", given.read_text())[0].encode()
        files = [file for file in run.folder.rglob("*") if file.is_file() and not file.is_symlink()]
        assert [file for file in files if key in file.read_bytes()] == []
    finally:
        types("cancel", run.folder)
    assert eventually(lambda: leftovers(run) == [], 15), leftovers(run)


def signed_certificate(folder: Path, domain: str, *, name: str = "door", with_authority: bool = True) -> Path:
    """A certificate signed by an authority of the test's own, with its chain and key in one file."""
    if with_authority:
        made = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=authority")
        openssl(folder, *made, "-keyout", "authority.key", "-out", "authority.crt")
    asked = ("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=door")
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


@pytest.mark.parametrize(("part", "lacks"), [("door.crt", "private key"), ("door.key", "certificate")])
def test_half_a_certificate_is_told(tmp_path: Path, part: str, lacks: str) -> None:
    signed_certificate(tmp_path, "door.cluster.example")
    with pytest.raises(StartFailed, match=f"{part} holds no {lacks}"):
        take_certificate(RunPaths(tmp_path / "run"), tmp_path / part)


def test_a_run_that_is_done_ends_at_once(tmp_path: Path) -> None:
    answer, run = submit(tmp_path, "--wait", engine=built(), serve=DOOR)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    times = {event.name: event.time for event in read_events(run, "serve")}
    # Triton waits 30 s for connections that stay open.
    assert times["stage_end"] - times["server_stop"] < 20
    assert RankRecord.read(run.rank_record("serve", 0)).exit_code == 0  # type: ignore[union-attr]
    assert eventually(lambda: leftovers(run) == [], 15), leftovers(run)
