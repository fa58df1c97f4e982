"""The proxy on the local profile: a real HAProxy in front of a real tritonserver, and other users before it.

All tests share one run; ``test_proxy_runs.py`` has those with runs of their own.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from tests.proxies import ask
from tests.schemas.check import documented
from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Endpoint, read_events

from .test_local_profile import built, leftovers, state, submit, types

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed (.ci/test does)"),
]

PROXY = {
    "ready_timeout_seconds": 120,
    "proxy": "haproxy",
    "max_request_mib": 1,
    "restarts": 3,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunPaths]:
    folder = tmp_path_factory.mktemp("proxy")
    _, paths = submit(folder, engine=built(1), serve=PROXY, companion={"enabled": False})
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


def test_the_runs_own_commands_are_let_in(run: RunPaths) -> None:
    few = (
        "--requests",
        "4",
        "--rate",
        "4",
        "--max-tokens",
        "2",
        "--set=min_requests=1",
        "--set=min_window_seconds=0",
    )
    commands = (
        ("client", run.folder, "--prompt", "Hello", "--max-tokens", "4"),
        ("bench", run.folder, *few, "--set", "max_late_share=1"),
        ("bench", run.folder, *few, "--set", "max_late_share=1", "--protocol", "http"),
        ("metrics", run.folder),
        ("status", run.folder),
    )
    for command in commands:
        answer = types(*command)
        assert answer.returncode == 0, (command, answer.stdout, answer.stderr)
    summary = documented("bench show", types("bench", "show", run.folder, "--json").stdout)
    assert "metrics" not in json.dumps(summary["verdict"])


def test_a_connection_without_the_key_does_not_stay_open(run: RunPaths, endpoint: Endpoint) -> None:
    """Another user's idle connections would take all places of the proxy."""
    headers = {"Authorization": f"Bearer {run.key.read_text().strip()}"}
    owner = http.client.HTTPConnection("127.0.0.1", endpoint.http_port, timeout=10)
    owner.request("GET", "/v2/health/ready", headers=headers)
    assert owner.getresponse().read() == b""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    said = {
        endpoint.http_port: (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        endpoint.grpc_port: (b"", preface[:5], preface, preface + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])),
    }
    others = []
    for port, beginnings in said.items():
        for beginning in beginnings:
            others.append(socket.create_connection(("127.0.0.1", port), timeout=10))
            others[-1].sendall(beginning)
    for other_user in others:
        with other_user:
            while other_user.recv(4096):
                pass
    kept = owner.sock
    owner.request("GET", "/v2/health/ready", headers=headers)
    assert owner.getresponse().status == 200 and owner.sock is kept is not None
    owner.close()


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
        assert ask(endpoint, endpoint.http_port, method, f"/{path}", {}, headers)[0] == 401, path
    assert ask(endpoint, endpoint.metrics_port, "GET", "/metrics", headers=headers)[0] == 401


def test_without_the_key_no_call_over_grpc_is_let_in(endpoint: Endpoint) -> None:
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    with InferenceServerClient(endpoint.grpc) as client:
        for call in (client.is_server_live, client.get_model_repository_index, client.get_log_settings):
            with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
                call()


_OTHER_USER = """
import glob, http.client, json, socket, sys
key_file, sockets, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
found = []
for file in [key_file, *glob.glob(sockets.rsplit('_proxy', 1)[0] + '*')]:
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
    [sockets] = Path("/dev/shm").glob(f"trt{endpoint.job_id}_proxy0_*/0")
    assert (sockets / "http").is_socket()
    words = ["/usr/bin/python3", "-I", "-c", _OTHER_USER, str(run.key), str(sockets), str(endpoint.http_port)]
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
    lines = ["POST /v2/models/ensemble/generate HTTP/1.1", "Host: proxy", *headers, length, "", ""]
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
    from tritonclient.grpc import InferenceServerClient, InferInput
    from tritonclient.utils import InferenceServerException

    tensor = InferInput("x", [elements], "INT32")
    tensor.set_data_from_numpy(np.zeros(elements, np.int32))
    with (
        InferenceServerClient(
            endpoint.grpc,
            ssl=endpoint.certificate_file is not None,
            root_certificates=endpoint.certificate_file,
            channel_args=[("grpc.enable_http_proxy", 0)],
        ) as client,
        pytest.raises(InferenceServerException, match=answer),
    ):
        client.infer("nosuch", [tensor], headers=dict(endpoint.authorization), **options)


def test_a_killed_proxy_is_opened_again(run: RunPaths, endpoint: Endpoint) -> None:
    proxies = subprocess.run(
        ["pgrep", "-f", f"haproxy.*{run.proxy(0)}"], capture_output=True, text=True
    ).stdout
    os.kill(int(proxies.split()[0]), signal.SIGKILL)

    def is_open() -> bool:
        try:
            return ask(endpoint, endpoint.http_port, "GET", "/v2/health/ready")[0] == 200
        except OSError:
            return False

    restarted = lambda: "proxy_restarted" in [event.name for event in read_events(run, "serve")]  # noqa: E731
    assert eventually(restarted, 10) and eventually(is_open, 10)


CRASH = {"inputs": [{"name": "input_ids", "datatype": "INT32", "shape": [1, 1 << 40], "data": [1]}]}
"""Triton 2.51 tries to allocate what the shape says, and aborts."""


def test_a_crashed_server_is_started_again_and_told(run: RunPaths, endpoint: Endpoint) -> None:
    port, path = endpoint.http_port, "/v2/models/tensorrt_llm/infer"
    assert ask(endpoint, port, "POST", path, CRASH, {})[0] == 401
    assert instances(run)[0]["restarts"] == 0
    assert ask(endpoint, port, "POST", path, CRASH)[0] == 502
    assert eventually(lambda: instances(run)[0]["restarts"] == 1, 10), instances(run)
    assert "was killed by signal 6" in instances(run)[0]["reason"]
    assert eventually(lambda: instances(run)[0]["state"] == "ready", 60), instances(run)
    answer = types("client", run.folder, "--prompt", "Hello", "--max-tokens", "4")
    assert answer.returncode == 0, answer.stderr


def gateways(run: RunPaths) -> list[int]:
    """The gateway's processes of this run."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = process.read_bytes().split(b"\0")
            if b"gateway" in words and str(run.folder).encode() in words:
                found.append(int(process.parent.name))
    return found


def bodies_may_be_chunked_and_are_bounded(endpoint: Endpoint, body: dict[str, Any]) -> None:
    """Their length is unknown to the proxy, so the gateway bounds them."""
    plain = json.dumps(body).encode()
    port = urlsplit(str(endpoint.openai_url)).port
    headers = {"Content-Type": "application/json", **endpoint.authorization}
    for content, status in (([plain[:9], plain[9:]], 200), ([b" " * (1 << 19)] * 3, 413)):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/v1/completions", iter(content), headers)
        assert connection.getresponse().status == status
        connection.close()


def test_the_first_request_starts_the_gateway_and_the_next_one_starts_it_again(
    run: RunPaths, endpoint: Endpoint
) -> None:
    assert endpoint.openai_url is not None
    words = ("--prompt", "a cat", "--max-tokens", "8", "--model", "ensemble", "--json")
    answer = types("client", run.folder, *words)
    [told] = json.loads(answer.stdout)["answers"]
    with pytest.raises(openai.AuthenticationError, match="a key is needed") as refused:
        openai.OpenAI(base_url=endpoint.openai_url, api_key="another").models.list()
    assert (refused.value.type, refused.value.code) == ("invalid_request_error", "invalid_api_key")
    assert gateways(run) == []
    key = endpoint.authorization["authorization"].removeprefix("Bearer ")
    client = openai.OpenAI(base_url=endpoint.openai_url, api_key=key)
    [model] = client.models.list()
    ask = partial(client.completions.create, model=model.id, prompt="a cat", max_tokens=8, temperature=0)
    assert told["text"] == "a cat" + ask().choices[0].text
    bodies_may_be_chunked_and_are_bounded(endpoint, {"model": model.id, "prompt": "a cat", "max_tokens": 8})
    [gateway] = gateways(run)
    os.kill(gateway, signal.SIGKILL)
    assert eventually(lambda: gateways(run) == [])
    assert told["text"] == "a cat" + ask().choices[0].text and gateways(run) != [gateway]
    with pytest.raises(openai.APIStatusError, match="ended each time it was started") as caught:
        for _ in range(3):
            for process in gateways(run):
                os.kill(process, signal.SIGKILL)
            assert eventually(lambda: gateways(run) == [])
            ask()
    assert caught.value.status_code == 503 and "logs/gateway.out" in caught.value.message
    assert run.batch_log("gateway") == run.logs / "gateway.out"
    told = types("status", run.folder).stdout
    assert "\ngateway: " in told and "has ended 3 times" in told and "\nserving: " in told
    for program in ("proxy", "gateway"):
        log = types("logs", run.folder, "--stage", program)
        assert (log.returncode, log.stdout) == (0, run.batch_log(program).read_text())
    assert "has ended 3 times" in run.batch_log("serve").read_text()


def test_the_sockets_are_removed_before_a_hanging_server_is_killed(run: RunPaths, endpoint: Endpoint) -> None:
    """Slurm kills the job some seconds after its signal, and then nobody is left to remove them."""
    [folder] = Path("/dev/shm").glob(f"trt{endpoint.job_id}_proxy*")
    servers = subprocess.run(["pgrep", "-f", f"http-address=unix:{folder}/"], capture_output=True, text=True)
    [server, *_] = map(int, servers.stdout.split())
    os.kill(server, signal.SIGSTOP)
    cancelling = subprocess.Popen(
        [sys.executable, "-m", "trtllm_hpc", "cancel", run.folder], stdout=subprocess.DEVNULL
    )
    assert eventually(lambda: not folder.exists(), 15)
    assert Path(f"/proc/{server}").exists()
    assert cancelling.wait(30) == 0
