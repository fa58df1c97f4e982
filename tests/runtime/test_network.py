"""The check of the network between the nodes: what its figures mean, and the check itself by real sockets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runtime.conftest import Runtime
from trtllm_hpc.errors import FAIL, OK, WARN, Diagnostic
from trtllm_hpc.layout import WantedGroup, place, place_groups
from trtllm_hpc.runtime.checks import sentence_of, transports
from trtllm_hpc.runtime.nccl import _IMPORT_S, _Rank, _write
from trtllm_hpc.runtime.network import Link, judge, rounds, slow, table
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.records import read_events

HEALTHY = [
    Link((a, b), f"node{a}", f"node{b}", 20.0, 24.0 - a, 24.0 - b, 24.0 - b)
    for a, b in combinations(range(1, 5), 2)
]


def with_rate(rate: float, *pairs: tuple[int, int]) -> list[Link]:
    return [replace(it, back=rate, rate=rate) if it.pair in pairs else it for it in HEALTHY]


def test_in_a_round_each_node_talks_to_one_other() -> None:
    assert rounds("0,1,2,3") == [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
    for talking, pairs in (("0,1:2,3,4", 6), ("1,2 0:1,2", 3), ("0,1:0,1,2", 3), ("0,1,2,3,4,5", 15)):
        found = rounds(talking)
        assert sum(map(len, found)) == pairs == len({pair for each in found for pair in each})
        assert all(len({*sum(each, ())}) == 2 * len(each) for each in found)


def test_only_nodes_that_will_talk_are_paired() -> None:
    one_place = {"nodes": None, "gpus_per_node": 4, "spread": False}
    assert place(1, 8, **one_place).talking == "0,1"  # type: ignore[arg-type]
    assert place(2, 8, **one_place).talking == "0,1 2,3"  # type: ignore[arg-type]
    assert place(4, 4, **one_place).talking == ""  # type: ignore[arg-type]
    phases = [WantedGroup("context", 2, 2, 4), WantedGroup("generation", 1, 8, 4)]
    for apart in (False, True):
        assert place_groups(phases, spread=False, apart=apart).talking == "1,2 0:1,2"
    assert place_groups(phases, spread=False).worlds == "0,1 2,3 4,5,6,7,8,9,10,11"
    assert place_groups(phases, spread=False, apart=True).worlds == "0,1 2,3 4,5,6,7,8,9,10,11"
    assert place(2, 8, **one_place).worlds == "0,1,2,3,4,5,6,7 8,9,10,11,12,13,14,15"  # type: ignore[arg-type]
    assert place(4, 1, **one_place).worlds == ""  # type: ignore[arg-type]
    assert (
        place_groups(
            [WantedGroup("context", 1, 1, 4), WantedGroup("generation", 1, 2, 4)], spread=False
        ).talking
        == ""
    )


@pytest.mark.parametrize(
    ("links", "sentence"),
    [
        (with_rate(1.1, (1, 3)), "node3: 1.10 GB/s to node1, others 20.00 to 22.00 GB/s"),
        (
            with_rate(1.1, (1, 3), (2, 3), (3, 4)),
            "node3: 1.10 GB/s to node1, 1.10 GB/s to node2, 1.10 GB/s to node4, others 20.00 to 22.00 GB/s",
        ),
        (
            with_rate(1.0, (1, 2), (3, 4)),
            "node4: 1.00 GB/s to node3, node1 to node2 1.00 GB/s, others 20.00 to 21.00 GB/s",
        ),
        (
            [replace(HEALTHY[0], rate=0.11)],
            "0.11 GB/s between the nodes is no more than 1 Gb Ethernet; name the fast interface as "
            "network_interface in the profile",
        ),
    ],
)
def test_a_slow_pair_is_named_and_ends_nothing(links: list[Link], sentence: str) -> None:
    [finding] = judge(links, 0)
    assert (finding.state, sentence_of(finding)) == (WARN, sentence)


def test_what_ends_the_job() -> None:
    assert judge(HEALTHY, 20) == [] and slow(HEALTHY) == []
    [fault] = judge(with_rate(1.1, (1, 3)), 5)
    assert fault.state == FAIL
    assert fault.message == (
        "node3: 1.10 GB/s to node1, others 20.00 to 22.00 GB/s; preflight.minimum_gb_per_s is 5"
    )
    lost = [Link((2, 3), "node2", "node3", error="timed out"), *HEALTHY[:2]]
    assert judge(lost, 0) == [Diagnostic("", "node2 and node3 cannot talk: timed out")]
    shown = table(lost, {"transport": "TCP sockets over ib0", "seconds": 1.25, "said": ["it is lost"]})
    assert (
        "node2  node3  timed out" in shown and "node1  node2       20 us   23.00 GB/s   22.00 GB/s" in shown
    )
    assert "Not measured: NCCL (ranks), UCX and NIXL (KV cache)" in shown


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


def test_three_tasks_measure_each_other(runtime: Runtime) -> None:
    [port] = free_ports(1)
    key = "0123456789abcdef" * 2
    words = ("network", "--talking=0,1,2", "--nodes=3", "--first=0", "--interface=lo")
    meeting = f"127.0.0.1 {port} {key}"

    def task(number: int) -> subprocess.Popen[str]:
        return runtime.start(*words, SLURM_PROCID=str(number), TRTLLM_HPC_MEETING=meeting)

    late = [task(1), task(2)]  # the first node's task starts last
    first = runtime.start(*words, SLURM_PROCID="0", TRTLLM_HPC_MEETING=meeting)
    while first.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as other_user:
                other_user.sendall(b'{"key": "guess", "number": 0}\n')
            break
        except ConnectionRefusedError:
            continue
    for process in (first, *late):
        process.communicate(timeout=30)
        assert process.returncode == 0
    record = json.loads(runtime.paths.network.read_text())
    assert [link["pair"] for link in record["links"]] == [[0, 1], [0, 2], [1, 2]]
    assert all(link["rate"] > 0 and link["trip_us"] > 0 and link["error"] is None for link in record["links"])
    assert record["transport"] == "TCP sockets over lo" and record["seconds"] < 5
    assert runtime.paths.network_table.read_text().startswith(
        "The nodes that will talk, by TCP sockets over lo"
    )
    assert not [event for event in read_events(runtime.paths) if event.name == "preflight_failed"]


RANKS = ("nccl", "--worlds=0,1", "--ranks=2", "--ranks-per-node=2", "--first=0", "--interface=lo")


def test_without_pytorch_ranks_are_not_measured(runtime: Runtime) -> None:
    ended = runtime(*RANKS, "--address=127.0.0.1", "--port=9", SLURM_PROCID="0")
    assert ended.returncode == 0
    assert (
        "warning: preflight: network: between ranks: NCCL is not measured: No module named 'torch'"
        in ended.stderr
    )


@pytest.mark.long
def test_two_ranks_measure_an_all_reduce(runtime: Runtime) -> None:
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
    record = json.loads(runtime.paths.network.read_text())["ranks"]
    assert record["transport"] == "Gloo" and set(record["all_reduce"]) == {"0,1"}
    [link] = record["links"]
    assert link["pair"] == [0, 1] and link["rate"] > 0 and link["trip_us"] > 0
    assert "all-reduce of ranks 0,1:" in runtime.paths.network_table.read_text()


def test_a_step_between_ranks_that_fails_ends_the_job_with_its_name(runtime: Runtime) -> None:
    rank = _Rank(runtime.paths, Namespace(first=3))
    with pytest.raises(SystemExit), rank.bound("an exchange with rank 1", 9):
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
        _Rank(runtime.paths, options).measure(SimpleNamespace(cuda=cuda, distributed=dist, ones=call("ones")))
    [event] = read_events(runtime.paths)
    assert event.data["reason"].startswith("network: between ranks: rank 0 (")
    assert event.data["reason"].endswith("fails: CUDA error")
    if failing != "is_available":  # the others may import PyTorch for longer
        assert calls["init_process_group"]["timeout"].total_seconds() > _IMPORT_S


def test_the_ranks_of_an_earlier_start_are_not_kept(runtime: Runtime) -> None:
    shown = list[str]()
    for _ in range(2):
        _write(runtime.paths, {"transport": "Gloo", "all_reduce": {}, "said": [], "seconds": 1.0}, HEALTHY)
        shown.append(runtime.paths.network_table.read_text())
    assert shown[0] == shown[1]
