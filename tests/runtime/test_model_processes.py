"""One of several processes of a Python model dies, in a real tritonserver."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.triton import running_triton
from tests.waiting import eventually
from trtllm_hpc.runtime.process import descendants, parent_of
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.runtime.servers import triton
from trtllm_hpc.runtime.servers.triton import ModelProcesses

pytestmark = pytest.mark.triton

MODEL = """
import os
import time

class TritonPythonModel:
    def initialize(self, args):
        if os.fork() == 0:
            time.sleep(2)
            os._exit(0)  # the model's own child, which it never waits for

    def execute(self, requests):
        return []
"""
CONFIG = """
name: "echo"
backend: "python"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Endpoint]:
    """A server with two processes for its model, which a client may load and unload."""
    folder = tmp_path / "repository" / "echo"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(MODEL)
    (folder / "config.pbtxt").write_text(CONFIG)
    options = ["--model-control-mode=explicit", "--load-model=echo", "--exit-timeout-secs=2"]
    with running_triton(tmp_path, ["echo"], options=options) as endpoint:
        yield endpoint


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> ModelProcesses:
    for name, seconds in (("_SEARCH_S", 0.1), ("_LOOK_S", 0.1), ("_DEAD_S", 0.5)):
        monkeypatch.setattr(triton, name, seconds)
    return ModelProcesses()


def stubs() -> list[int]:
    """Those that Triton has started: the children of a process that is none."""
    found = [pid for pid in descendants(os.getpid()) if b"/echo/1/model.py" in command_line(pid)]
    return [pid for pid in found if parent_of(pid) not in found]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def ask(endpoint: Endpoint, what: str) -> None:
    url = f"http://{endpoint.http}/v2/repository/models/echo/{what}"
    with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=30) as answer:
        assert answer.status == 200


def stays_well(processes: ModelProcesses, seconds: float = 1.0) -> bool:
    """Whether it finds no fault for twice as long as it takes to find one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if processes.dead() is not None:
            return False
        time.sleep(0.05)
    return True


def test_a_process_that_dies_alone_is_noticed(server: Endpoint, processes: ModelProcesses) -> None:
    assert stays_well(processes, 3.5), "the models' own children have died"
    os.kill(stubs()[0], signal.SIGKILL)
    assert eventually(processes.dead) == "echo"


def test_a_client_that_loads_a_model_again_is_no_fault(server: Endpoint, processes: ModelProcesses) -> None:
    assert stays_well(processes)
    ask(server, "unload")
    assert eventually(lambda: stubs() == [])
    assert stays_well(processes)
    ask(server, "load")
    assert len(stubs()) == 2 and stays_well(processes)
    os.kill(stubs()[0], signal.SIGKILL)
    assert eventually(processes.dead), "and the new ones are watched"
