"""How ranks end: in order when asked to, at once when one is lost."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, deliver_challenge
from pathlib import Path

import pytest

from tests.waiting import eventually
from trtllm_hpc.errors import StartFailed
from trtllm_hpc.reference import world
from trtllm_hpc.reference.world import RENDEZVOUS, Channel, World
from trtllm_hpc.runtime.node import free_ports

from . import servers
from .clients import LONG
from .servers import meeting

BODY = {"text_input": "What is machine learning?", "max_tokens": LONG - 20, "end_id": -1}


@pytest.fixture(params=[pytest.param("repository", marks=pytest.mark.thorough), "stand_in"])
def pair_of(request: pytest.FixtureRequest) -> Path:
    """A repository for two ranks, with a model and without."""
    folder: Path = request.getfixturevalue(request.param)
    return folder


def stub_of(world: servers.World, rank: int) -> int:
    """The process of the ``tensorrt_llm`` model; its command line holds the model's path."""
    for pid in world.children(rank):
        if b"/tensorrt_llm/" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError(f"rank {rank} has no such process")


@pytest.mark.triton
def test_sigterm_to_the_leader_ends_all_ranks_in_order(pair_of: Path, tmp_path: Path) -> None:
    with servers.start(tmp_path / "run", pair_of, 2) as world:
        assert world.generate(BODY)[0] == 200
        world.ranks[0].send_signal(signal.SIGTERM)
        assert [world.wait_ended(rank) for rank in (0, 1)] == [0, 0]
        assert world.shared_memory() == []
        assert [world.failure(rank) for rank in (0, 1)] == ["", ""]
        assert not [rank for rank in (0, 1) if "Fatal Python error" in world.log(rank)]


@pytest.mark.triton
def test_killed_follower_process_ends_the_idle_leader(pair_of: Path, tmp_path: Path) -> None:
    with servers.start(tmp_path / "run", pair_of, 2) as world:
        stubs = world.children(0)
        os.kill(stub_of(world, 1), signal.SIGKILL)
        assert world.wait_ended(0) == -signal.SIGKILL
        assert "Rank 0 lost another rank" in world.failure(0)
        assert world.wait_ended(1) != 0
        assert "rank 1 was killed or crashed" in world.failure(1)
        assert_gone(stubs)


@pytest.mark.triton
def test_killed_follower_server_ends_the_busy_leader(pair_of: Path, tmp_path: Path) -> None:
    with servers.start(tmp_path / "run", pair_of, 2) as world, keep_busy(world):
        stubs = [*world.children(0), *world.children(1)]
        world.ranks[1].kill()
        assert world.wait_ended(0) == -signal.SIGKILL
        assert "Rank 0 lost another rank" in world.failure(0)
        assert world.failure(1) == "", "a killed server is not its model's doing"
        assert_gone(stubs)


@pytest.mark.triton
def test_killed_leader_process_ends_all_ranks(pair_of: Path, tmp_path: Path) -> None:
    with servers.start(tmp_path / "run", pair_of, 2) as world:
        os.kill(stub_of(world, 0), signal.SIGKILL)
        assert [world.wait_ended(rank) for rank in (0, 1)] == [-signal.SIGKILL] * 2
        assert world.failure(0) == "The model's process of rank 0 was killed or crashed.\n"
        assert "Rank 1 lost another rank" in world.failure(1)


@pytest.mark.triton
def test_an_engine_without_a_model_answers_and_streams(stand_in: Path, tmp_path: Path) -> None:
    with servers.start(tmp_path / "run", stand_in, 2) as world:
        status, answer = world.generate({"text_input": "What is it?", "max_tokens": 20})
        assert status == 200 and len(set(answer["text_output"])) > 5
        again = world.generate({"text_input": "What is it?", "max_tokens": 20}, "tensorrt_llm_bls")
        assert again[1]["text_output"] == answer["text_output"]
        status, refusal = world.generate({"text_input": "What?", "max_tokens": 4, "beam_width": 2})
        assert status != 200 and "beam_width" in refusal["error"]


def keep_busy(world: servers.World) -> subprocess.Popen[bytes]:
    """Requests one after the other from a process of its own, until the server is gone."""
    script = 'while curl -sf -o /dev/null -d "$1" "$2"; do echo served; done'
    arguments = [json.dumps(BODY), world.url("models/ensemble/generate")]
    load = subprocess.Popen(["bash", "-c", script, "busy", *arguments], stdout=subprocess.PIPE)
    assert load.stdout is not None
    assert load.stdout.readline() == b"served\n"
    return load


def assert_gone(pids: list[int]) -> None:
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.fixture
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[World]:
    """Two ranks that can meet."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_ports(1)[0]))
    monkeypatch.setenv(RENDEZVOUS, meeting(tmp_path))
    return [World(rank=rank, size=2, local_rank=rank, failure_file=None) for rank in range(2)]


def address() -> tuple[str, int]:
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


@pytest.fixture
def channels(worlds: list[World], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Channel, Channel]]:
    """Both ends between two ranks, with other connections before them."""
    monkeypatch.setattr(world, "GREETING_TIMEOUT_S", 1)
    with ThreadPoolExecutor(2) as pool, ExitStack() as others:
        leader = pool.submit(Channel, worlds[0])
        # A port scanner, one that claims to be rank 1, and a silent one.
        for said in (b"GET / HTTP/1.1\r\n\r\n" * 9, struct.pack("!i", 1) + b"1", b""):
            others.enter_context(eventually(partial(intruder, address(), said)))
        other = pool.submit(Channel, worlds[1])
        yield leader.result(), other.result()


def intruder(address: tuple[str, int], said: bytes) -> socket.socket | None:
    """A connection of somebody who does not know the ranks' secret."""
    try:
        opened = socket.create_connection(address)
    except OSError:
        return None
    opened.sendall(said)
    return opened


def test_a_rank_obeys_nobody_who_has_taken_the_leaders_port(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "RENDEZVOUS_TIMEOUT_S", 0.0)
    with socket.create_server(address()) as listener, ThreadPoolExecutor(1) as pool:
        other = pool.submit(Channel, worlds[1])
        connection = Connection(listener.accept()[0].detach())
        with pytest.raises(AuthenticationError):
            deliver_challenge(connection, b"another secret")
        with pytest.raises(StartFailed, match="rank 0 has not proved itself"):
            other.result()
        connection.close()


def test_rank_0_listens_on_the_leaders_address_alone(worlds: list[World]) -> None:
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(Channel, worlds[0])
        with eventually(lambda: intruder(address(), b"")):
            pass
        port = address()[1]
        listening = subprocess.run(
            ["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True, check=True
        )
        assert [line.split()[3] for line in listening.stdout.splitlines()] == [f"127.0.0.1:{port}"]
        other = pool.submit(Channel, worlds[1])
        leader.result(), other.result()


def test_loss_is_noticed_by_a_rank_that_waits_for_something_else(channels: tuple[Channel, Channel]) -> None:
    leader, other = channels
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    leader.watch(lost.put)
    other.close()
    assert lost.get(timeout=60) == "Rank 0 lost another rank: the connection to rank 1 was closed."
    leader.close()


def test_ranks_that_are_told_to_leave_may_be_quicker_than_the_leader(
    channels: tuple[Channel, Channel],
) -> None:
    """A connection that closes between the last step and the leader's own end is no loss."""
    leader, other = channels
    lost: list[str] = []
    leader.watch(lost.append)
    leader.send(b"")
    assert other.receive() == b""
    other.close()
    time.sleep(0.2)
    leader.close()
    assert lost == []
