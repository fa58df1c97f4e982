"""The network between nodes and ranks, tried before a model is loaded: by real sockets and processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runtime.conftest import Runtime
from trtllm_hpc.errors import OK, WARN
from trtllm_hpc.layout import WantedGroup, place, place_groups
from trtllm_hpc.runtime import nccl, network
from trtllm_hpc.runtime.checks import transports
from trtllm_hpc.runtime.nccl import _IMPORT_S, bound, join_ranks
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.records import read_events


def test_the_ranks_of_each_server_are_numbered_over_the_whole_job() -> None:
    one_place = {"nodes": None, "gpus_per_node": 4, "per_gpu": 1, "spread": False}
    phases = [WantedGroup("context", 2, 2, 4), WantedGroup("generation", 1, 8, 4)]
    for apart in (False, True):
        assert place_groups(phases, spread=False, apart=apart).worlds == "0,1 2,3 4,5,6,7,8,9,10,11"
    assert place(2, 8, **one_place).worlds == "0,1,2,3,4,5,6,7 8,9,10,11,12,13,14,15"  # type: ignore[arg-type]
    assert place(4, 1, **one_place).worlds == ""  # type: ignore[arg-type]


def test_variables_that_hinder_are_named() -> None:
    found = transports("n1", {"UCX_TLS": "tcp", "NCCL_IB_DISABLE": "1"})
    assert found.state == WARN and "has UCX_TLS=tcp: " in found.message
    assert found.hint == "add 'unset UCX_TLS NCCL_IB_DISABLE' to the profile's setup lines"
    assert "Y" in transports("n1", {"UCX_TLS": "^sm,cuda_copy", "UCX_IB_ROCE_LOCAL_SUBNET": "Y"}).message
    for harmless in (
        {"UCX_TLS": "rc,cuda_copy", "NCCL_IB_DISABLE": "0", "NCCL_NET": "IB"},
        {"UCX_TLS": "^cuda_ipc", "UCX_IB_ROCE_LOCAL_SUBNET": "n"},
        {"UCX_TLS": "^ib"},
        {"UCX_TLS": "all"},
        {},
    ):
        assert transports("n1", harmless).state == OK


class Nodes:
    """Three tasks of the check, on this machine."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, [self.port] = runtime, free_ports(1)

    def start(self, number: int, count: int = 3) -> subprocess.Popen[str]:
        meeting = f"127.0.0.1 {self.port} {'0123456789abcdef' * 2}"
        words = ("network", f"--nodes={count}", "--first=0", "--interface=lo")
        return self.runtime.start(*words, SLURM_PROCID=str(number), TRTLLM_HPC_MEETING=meeting)


def test_three_nodes_reach_each_other_beside_another_user(runtime: Runtime) -> None:
    nodes = Nodes(runtime)
    late = [nodes.start(1), nodes.start(2)]  # the first node's task starts last
    first = nodes.start(0)
    while first.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", nodes.port), 1) as other_user:
                other_user.sendall(b'{"key": "guess", "number": 0}\n')
            break
        except ConnectionRefusedError:
            continue
    for process in (first, *late):
        process.communicate(timeout=30)
        assert process.returncode == 0
    [event] = read_events(runtime.paths)
    assert (event.name, event.data) == (network.EVENT, {"nodes": 3})


def test_a_pair_that_cannot_talk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    [port] = free_ports(1)
    own, other = {"host": "n2", "key": "k"}, {"host": "n3", "at": ["127.0.0.1", port]}
    assert network._try_peer(own, other) == "n2 and n3 cannot talk: [Errno 111] Connection refused"
    monkeypatch.setattr(network, "_PACKET_S", 0.2)
    with socket.create_server(("127.0.0.1", port)) as silent:
        assert network._try_peer(own, other) == "n2 and n3 cannot talk: timed out"
        connected = silent.accept()[0]
        connected.close()


RANKS = ("nccl", "--worlds=0,1", "--ranks=2", "--ranks-per-node=2", "--first=0", "--interface=lo")


def test_without_pytorch_a_warning_says_so(runtime: Runtime) -> None:
    ended = runtime(*RANKS, "--address=127.0.0.1", "--port=9", SLURM_PROCID="0")
    assert ended.returncode == 0
    assert "warning: preflight: network: between ranks: NCCL is not tried: No module named" in ended.stderr


@pytest.mark.long
def test_two_ranks_are_joined(runtime: Runtime) -> None:
    [port] = free_ports(1)
    command = [sys.executable, "-m", "trtllm_hpc.runtime", "--run", str(runtime.paths.folder), *RANKS]
    command += ["--address=127.0.0.1", f"--port={port}"]
    ranks = [
        subprocess.Popen(command, env={**os.environ, "SLURM_PROCID": str(number)}, stderr=subprocess.PIPE)
        for number in (0, 1)
    ]
    for rank in ranks:
        rank.communicate(timeout=60)
    assert [rank.returncode for rank in ranks] == [0, 0]
    [event] = read_events(runtime.paths)
    assert (event.name, event.data["library"]) == (nccl.EVENT, "Gloo")
    assert event.data["gb_per_s"]["0,1"] > 0


def test_a_step_between_ranks_that_fails_ends_the_job_with_its_name(runtime: Runtime) -> None:
    with pytest.raises(SystemExit), bound(runtime.paths, 3, "an exchange with rank 1", 9):
        raise RuntimeError("connection\nreset")
    [event] = read_events(runtime.paths)
    assert event.name == "preflight_failed"
    assert event.data["reason"].endswith("an exchange with rank 1 fails: connection reset")
    assert event.data["reason"].startswith("network: between ranks: rank 3 (")


@pytest.mark.parametrize("failing", ["is_available", "set_device", "ones", "new_group"])
def test_a_rank_that_cannot_take_its_gpu_is_named(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    calls = dict[str, dict[str, Any]]()

    def call(name: str, answer: Any = None) -> Any:
        def act(*_: Any, **options: Any) -> Any:
            calls[name] = options
            if name == failing:
                raise RuntimeError("CUDA error")
            return answer

        return act

    names = ("init_process_group", "all_gather_object", "new_group")
    dist = SimpleNamespace(**{name: call(name) for name in names})
    answers = {"is_available": True, "device_count": 1, "set_device": None}
    cuda = SimpleNamespace(**{name: call(name, answer) for name, answer in answers.items()})
    cuda.nccl = SimpleNamespace(version=lambda: (2, 27))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    options = Namespace(first=0, ranks=1, ranks_per_node=1, interface=None, address="127.0.0.1", port=9)
    options.worlds = "0"
    with pytest.raises(SystemExit):
        join_ranks(runtime.paths, options, SimpleNamespace(cuda=cuda, distributed=dist, ones=call("ones")))
    [event] = read_events(runtime.paths)
    assert event.data["reason"].startswith("network: between ranks: rank 0 (")
    assert event.data["reason"].endswith("fails: CUDA error")
    if failing != "is_available":  # the others may import PyTorch for longer
        assert calls["init_process_group"]["timeout"].total_seconds() > _IMPORT_S
