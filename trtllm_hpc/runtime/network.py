"""Test the network between the nodes of a job by TCP, before anything is loaded.

One task runs on each node. All tasks connect to the job's first node, which sends each task the addresses of
all nodes. Then every node exchanges packets with each node after it. Every wait has a limit, so a broken pair
of nodes is named, where MPI would hang (docs/explanation/decisions/serving.md).
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any, TypeAlias

from trtllm_hpc.errors import Diagnostic, ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.checks import report
from trtllm_hpc.runtime.node import own_address, remove_of_ended_jobs, task_number
from trtllm_hpc.runtime.records import try_event

NETWORK_OK = "network_ok"
"""Name of the event that all nodes have reached each other."""
_MEETING = "TRTLLM_HPC_MEETING"
"""Environment variable with ``address port key`` of the first node's meeting point."""
_ARRIVAL_S, _ANSWER_S, _PACKET_S, _KEY_S = 45.0, 30.0, 2.5, 0.5
"""Limits in seconds: the first node waits for the other nodes to arrive, then for their findings; each node
waits for a packet (the kernel repeats a lost packet after a second), and for the key of an incoming call."""
_LARGE = 256 * 1024
"""Bytes of a large message: more than the largest packet of any network."""

_Stream: TypeAlias = Any


def check_network(paths: RunPaths, first: int, nodes: int, interface: str | None) -> int:
    """Exchange packets with the other nodes; return 0, or the exit code of a refused start.

    ``first`` is the number within the job of the step's first node; ``nodes`` is the job's number of nodes.
    """
    remove_of_ended_jobs()  # here, because this is the first step on each node, and outside the container
    host, (address, port, key) = socket.gethostname(), os.environ[_MEETING].split()
    own = socket.create_server((own_address(interface), 0), backlog=nodes)
    Thread(target=_answer_peers, args=(own, key), daemon=True).start()
    hello = {"key": key, "number": first + task_number(), "host": host, "at": own.getsockname()}
    try:
        if hello["number"] == 0:
            meeting = socket.create_server((address, int(port)), backlog=nodes)
            Thread(target=_lead, args=(paths, nodes, meeting, key), daemon=True).start()
        faults = _follow(address, int(port), hello)
    except OSError as error:  # the first node does not know this fault
        faults = [f"{host} and the first node, {address}, cannot talk: {error}"]
    else:
        if hello["number"]:  # the first node reports the faults of all
            return ExitCode.START if faults else ExitCode.OK
    return report(paths, [Diagnostic("", f"network: {fault}") for fault in faults])


def _follow(address: str, port: int, hello: dict[str, Any]) -> list[str]:
    """Test the peers that the first node names; return the faults found by all nodes. Raises OSError."""
    line, until = None, time.monotonic() + _ARRIVAL_S
    while line is None:
        try:
            line = socket.create_connection((address, port), _PACKET_S)
        except ConnectionRefusedError:  # the first node's task may start later than this task
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    line.settimeout(None)
    stream = line.makefile("rwb")
    _send(stream, hello)
    for text in stream:
        order = json.loads(text)
        if "faults" in order:
            return [str(fault) for fault in order["faults"]]
        later = [node for node in order["nodes"] if node["number"] > hello["number"]]
        with ThreadPoolExecutor(16) as pool:
            faults = pool.map(partial(_try_peer, hello), later)
        _send(stream, [fault for fault in faults if fault])
    raise ConnectionError("its task has ended")


def _send(stream: _Stream, record: Any) -> None:
    stream.write(json.dumps(record).encode() + b"\n")
    stream.flush()


def _try_peer(own: dict[str, Any], other: dict[str, Any]) -> str | None:
    """Exchange packets with another node; return the fault, if any."""
    where = f"{own['host']} and {other['host']} cannot talk: "
    try:
        with socket.create_connection(tuple(other["at"]), _PACKET_S) as peer, peer.makefile("rwb") as stream:
            _send(stream, own["key"])
            _read(stream, 1)
            where += "small packets arrive, but not large ones (is the MTU the same everywhere?): "
            stream.write(bytes(_LARGE))
            stream.flush()
            _read(stream, _LARGE)
    except OSError as error:
        return f"{where}{error}"
    return None


def _read(stream: _Stream, size: int) -> bytes:
    data: bytes = stream.read(size)
    if len(data) < size:
        raise ConnectionError("the other node has closed the connection")
    return data


def _answer_peers(server: socket.socket, key: str) -> None:
    """Answer each peer's exchange; the peer reports the faults."""

    def answer(peer: socket.socket) -> None:
        peer.settimeout(_KEY_S)  # the caller may be another user, without the key
        with peer, suppress(OSError, ValueError), peer.makefile("rwb") as stream:
            if hmac.compare_digest(stream.readline(100).strip(), json.dumps(key).encode()):
                peer.settimeout(_PACKET_S)
                stream.write(b"\n")
                stream.flush()
                stream.write(_read(stream, _LARGE))

    while True:
        Thread(target=answer, args=(server.accept()[0],), daemon=True).start()


def _lead(paths: RunPaths, count: int, meeting: socket.socket, key: str) -> None:
    """On the first node: gather the nodes, have them test each other, and send all of them the faults."""
    nodes: dict[int, tuple[dict[str, Any], _Stream]] = {}
    """The greeting of each node (number, host, address) and the connection to it, by the node's number."""
    until, faults = time.monotonic() + _ARRIVAL_S, list[str]()
    while len(nodes) < count and (left := until - time.monotonic()) > 0:
        meeting.settimeout(left)
        # The caller may be another user, and may send anything.
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            line, _ = meeting.accept()
            line.settimeout(_PACKET_S)
            stream = line.makefile("rwb")
            hello = json.loads(stream.readline(1000))
            if hmac.compare_digest(hello.pop("key"), key):
                line.settimeout(_ANSWER_S)
                nodes[hello["number"]] = hello, stream
    arrived = [nodes[number] for number in sorted(nodes)]
    if len(nodes) < count:
        hosts = ", ".join(sorted(hello["host"] for hello, _ in arrived))
        faults = [f"only {len(nodes)} of {count} nodes came within {_ARRIVAL_S:.0f} s: {hosts}"]
    else:
        for _, stream in arrived:
            with suppress(OSError):  # a broken connection shows below, as a missing answer
                _send(stream, {"nodes": [hello for hello, _ in arrived]})
        for hello, stream in arrived:
            try:
                faults += json.loads(stream.readline() or b"-")
            except (OSError, ValueError):
                faults.append(f"{hello['host']} has not answered within {_ANSWER_S:.0f} s")
    if not faults:
        try_event(paths, "serve", NETWORK_OK, nodes=count)
    for _, stream in reversed(arrived):  # node 0, this process, last: it ends with its own answer
        with suppress(OSError):  # the node's task has ended
            _send(stream, {"faults": faults})
