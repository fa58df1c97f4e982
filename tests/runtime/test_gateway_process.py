"""The gateway's process as the supervisor starts it: by a request, and not for ever."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.front import Gateway


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run whose gateway cannot start: it has no job file."""
    made = RunPaths(tmp_path / "run")
    made.make_folders()
    return made


@pytest.fixture
def gateway(paths: RunPaths, tmp_path: Path) -> Iterator[Gateway]:
    made = Gateway(paths, tmp_path / "openai")
    yield made
    made.close()


def starts(paths: RunPaths) -> int:
    """How often it has told why it cannot start."""
    log = paths.batch_log("gateway")
    return log.read_text().count("there is no such job file") if log.exists() else 0


def test_without_a_request_there_is_no_process(gateway: Gateway, paths: RunPaths) -> None:
    assert [gateway.tick() for _ in range(5)] == [None] * 5
    assert not paths.batch_log("gateway").exists()


def test_one_that_ends_each_time_is_started_three_times(
    gateway: Gateway, paths: RunPaths, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "openai"))
        # The request waits for the next one when the process has ended.
        told = eventually(gateway.tick, 60)
        assert told == "the gateway with OpenAI's protocol has ended 3 times, with exit code 3"
        assert starts(paths) == 3
        client.settimeout(60)
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    # Told once; later requests are refused at once, by HAProxy's 503.
    assert [gateway.tick() for _ in range(3)] == [None] * 3
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
        late.connect(str(tmp_path / "openai"))
    assert starts(paths) == 3
