"""The network between the nodes, tried before a model is loaded: by real sockets and processes."""

from __future__ import annotations

import socket
import subprocess

import pytest

from tests.runtime.conftest import Runtime
from trtllm_hpc.errors import OK, WARN
from trtllm_hpc.runtime import network
from trtllm_hpc.runtime.checks import transports
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.records import read_events


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
    assert (event.name, event.data) == (network.NETWORK_OK, {"nodes": 3})


def test_a_pair_that_cannot_talk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    [port] = free_ports(1)
    own, other = {"host": "n2", "key": "k"}, {"host": "n3", "at": ["127.0.0.1", port]}
    assert network._try_peer(own, other) == "n2 and n3 cannot talk: [Errno 111] Connection refused"
    monkeypatch.setattr(network, "_PACKET_S", 0.2)
    with socket.create_server(("127.0.0.1", port)) as silent:
        assert network._try_peer(own, other) == "n2 and n3 cannot talk: timed out"
        connected = silent.accept()[0]
        connected.close()
