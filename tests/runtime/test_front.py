"""What the supervisor starts in front of the servers: the front of a disaggregated run, and the gateway."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths, write_json
from trtllm_hpc.runtime.front import Front, Gateway
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.records import read_events

ANSWERS = """
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    do_POST = do_GET
    def log_message(self, *_): pass
config = json.load(open(sys.argv[1]))
server = http.server.HTTPServer((config["hostname"], config["port"]), Handler)
open(sys.argv[2], "w").write(str(os.getpid()))
server.serve_forever()
"""


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path / "run")
    made.make_folders()
    servers = {"num_instances": 1, "router": {"type": "round_robin"}}
    write_json(
        made.front, {"backend": "pytorch", "context_servers": dict(servers), "generation_servers": servers}
    )
    made.servers_key.write_text("secret\n")
    return made


@pytest.fixture
def front(run: RunPaths) -> Iterator[Front]:
    servers = {"context": ["127.0.0.1:5"], "generation": ["127.0.0.1:6"]}
    made = Front(run, servers, free_ports(4))
    yield made
    made.close()


def test_the_front_has_the_places_and_the_key_in_a_file_of_its_own(
    run: RunPaths, front: Front, tmp_path: Path
) -> None:
    shown = tmp_path / "shown"
    run.script("front").write_text(f'echo "$0 $*" > {shown}\nexec sleep 60\n')
    front.start(["llama"])
    found = yaml.safe_load(run.front_started.read_text())
    assert found["context_servers"]["urls"] == ["127.0.0.1:5"]
    assert found["generation_servers"]["urls"] == ["127.0.0.1:6"]
    assert found["internal_request_auth_key"] == "secret"
    assert run.front_started.stat().st_mode & 0o777 == 0o600
    assert eventually(shown.exists) and "secret" not in shown.read_text()
    assert "secret" not in run.front.read_text()


def test_a_front_that_has_served_is_started_again_at_another_port(
    run: RunPaths, front: Front, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    words = [sys.executable, "-c", ANSWERS, str(run.front_started), str(pid)]
    run.script("front").write_text(f"exec {shlex.join(words)}\n")
    front.start(["llama"])
    first = yaml.safe_load(run.front_started.read_text())["port"]
    assert eventually(front.is_ready)
    killed = int(pid.read_text())
    os.kill(killed, signal.SIGKILL)
    # The supervisor looks again and again; the run goes on.
    assert eventually(lambda: front.watch() is None and int(pid.read_text() or killed) != killed)
    assert eventually(front.is_ready)
    assert yaml.safe_load(run.front_started.read_text())["port"] != first
    [event] = read_events(run, "serve")
    assert event.name == "front_restarted"
    assert event.data["why"] == f"the front of the servers on {socket.gethostname()} was killed by signal 9"


def test_a_front_that_never_served_ends_the_run(run: RunPaths, front: Front) -> None:
    run.script("front").write_text("exit 3\n")
    front.start(["llama"])
    assert eventually(lambda: front.watch() is not None)
    said = front.watch()
    assert said == f"the front of the servers on {socket.gethostname()} ended with exit code 3"


# The gateway is started by a request, and not for ever -------------------------------------


@pytest.fixture
def gateway(run: RunPaths, tmp_path: Path) -> Iterator[Gateway]:
    made = Gateway(run, tmp_path / "openai")
    yield made
    made.close()


def starts(run: RunPaths) -> int:
    """How often it has told why it cannot start."""
    log = run.batch_log("gateway")
    return log.read_text().count("there is no such job file") if log.exists() else 0


def test_without_a_request_there_is_no_process(gateway: Gateway, run: RunPaths) -> None:
    assert [gateway.tick() for _ in range(5)] == [None] * 5
    assert not run.batch_log("gateway").exists()


def test_one_that_ends_each_time_is_started_three_times(
    gateway: Gateway, run: RunPaths, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "openai"))
        # The request waits for the next one when the process has ended.
        told = eventually(gateway.tick, 60)
        assert told == "the gateway with OpenAI's protocol has ended 3 times, with exit code 3"
        assert starts(run) == 3
        client.settimeout(60)
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    # Told once; later requests are refused at once, by HAProxy's 503.
    assert [gateway.tick() for _ in range(3)] == [None] * 3
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
        late.connect(str(tmp_path / "openai"))
    assert starts(run) == 3
