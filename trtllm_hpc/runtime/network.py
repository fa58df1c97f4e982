"""The network between the nodes of a job, tried by TCP before anything is loaded.

There is a task on each node. They meet at the job's first node, which sends each the addresses of all. Then
every node exchanges packets with each later one. Every wait has a bound, so a pair between which packets are
lost is named, instead of hanging as in MPI (docs/explanation/decisions/serving.md).
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
"""Environment variable with the place where the nodes meet, on the first node: ``address port key``."""
_ARRIVAL_S, _ANSWER_S, _PACKET_S, _KEY_S = 45.0, 30.0, 2.5, 0.5
"""How long the first node waits for the others and for what each has found, and each node for a packet (the
kernel sends a lost one again after a second) and for the key of whoever calls it."""
_LARGE = 256 * 1024
"""Bytes, more than the largest packet that a network takes."""

_Stream: TypeAlias = Any


def check_network(paths: RunPaths, first: int, nodes: int, interface: str | None) -> int:
    """Exchange packets with the other nodes; returns 0, or the exit code of a refused start.

    ``first`` is the number of the step's first node in the job, which has so many ``nodes``.
    """
    remove_of_ended_jobs()  # the first step on each node, and outside the container
    host, (address, port, key) = socket.gethostname(), os.environ[_MEETING].split()
    own = socket.create_server((own_address(interface), 0), backlog=nodes)
    Thread(target=_answer_peers, args=(own, key), daemon=True).start()
    hello = {"key": key, "number": first + task_number(), "host": host, "at": own.getsockname()}
    try:
        if hello["number"] == 0:
            meeting = socket.create_server((address, int(port)), backlog=nodes)
            Thread(target=_lead, args=(paths, nodes, meeting, key), daemon=True).start()
        faults = _follow(address, int(port), hello)
    except OSError as error:  # the first node cannot report this
        faults = [f"{host} and the first node, {address}, cannot talk: {error}"]
    else:
        if hello["number"]:  # the first node reports what was found
            return ExitCode.START if faults else ExitCode.OK
    return report(paths, [Diagnostic("", f"network: {fault}") for fault in faults])


def _follow(address: str, port: int, hello: dict[str, Any]) -> list[str]:
    """Try the peers that the first node names; return what all nodes have found. Raises OSError."""
    line, until = None, time.monotonic() + _ARRIVAL_S
    while line is None:
        try:
            line = socket.create_connection((address, port), _PACKET_S)
        except ConnectionRefusedError:  # its task may start later than this one
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    line.settimeout(None)
    stream = line.makefile("rwb")
    _say(stream, hello)
    for text in stream:
        order = json.loads(text)
        if "faults" in order:
            return [str(fault) for fault in order["faults"]]
        later = [it for it in order["nodes"] if it["number"] > hello["number"]]
        with ThreadPoolExecutor(16) as pool:
            found = pool.map(partial(_try_peer, hello), later)
        _say(stream, [fault for fault in found if fault])
    raise ConnectionError("its task has ended")


def _say(stream: _Stream, record: Any) -> None:
    stream.write(json.dumps(record).encode() + b"\n")
    stream.flush()


def _try_peer(own: dict[str, Any], other: dict[str, Any]) -> str | None:
    """Exchange packets with another node; returns what is wrong."""
    where = f"{own['host']} and {other['host']} cannot talk: "
    try:
        with socket.create_connection(tuple(other["at"]), _PACKET_S) as peer, peer.makefile("rwb") as stream:
            _say(stream, own["key"])
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
    """Do the other side of each exchange; what goes wrong is reported by the peer."""

    def answer(peer: socket.socket) -> None:
        peer.settimeout(_KEY_S)  # another user may call
        with peer, suppress(OSError, ValueError), peer.makefile("rwb") as stream:
            if hmac.compare_digest(stream.readline(100).strip(), json.dumps(key).encode()):
                peer.settimeout(_PACKET_S)
                stream.write(b"\n")
                stream.flush()
                stream.write(_read(stream, _LARGE))

    while True:
        Thread(target=answer, args=(server.accept()[0],), daemon=True).start()


def _lead(paths: RunPaths, count: int, meeting: socket.socket, key: str) -> None:
    """Gather the nodes, have each try the others, and send all what was found."""
    nodes: dict[int, tuple[dict[str, Any], _Stream]] = {}
    """Each node's number, host and place, and the connection to it."""
    until, faults = time.monotonic() + _ARRIVAL_S, list[str]()
    while len(nodes) < count and (left := until - time.monotonic()) > 0:
        meeting.settimeout(left)
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):  # another user may call
            line, _ = meeting.accept()
            line.settimeout(_PACKET_S)
            stream = line.makefile("rwb")
            hello = json.loads(stream.readline(1000))
            if hmac.compare_digest(hello.pop("key"), key):
                line.settimeout(_ANSWER_S)
                nodes[hello["number"]] = hello, stream
    found = [nodes[number] for number in sorted(nodes)]
    if len(nodes) < count:
        here = ", ".join(sorted(hello["host"] for hello, _ in found))
        faults = [f"only {len(nodes)} of {count} nodes came within {_ARRIVAL_S:.0f} s: {here}"]
    else:
        for _, stream in found:
            with suppress(OSError):  # no answer will come, either
                _say(stream, {"nodes": [hello for hello, _ in found]})
        for hello, stream in found:
            try:
                faults += json.loads(stream.readline() or b"-")
            except (OSError, ValueError):
                faults.append(f"{hello['host']} has not answered within {_ANSWER_S:.0f} s")
    if not faults:
        try_event(paths, "serve", NETWORK_OK, nodes=count)
    for _, stream in reversed(found):  # this process ends with the last answer, its own
        with suppress(OSError):  # its task has ended
            _say(stream, {"faults": faults})
