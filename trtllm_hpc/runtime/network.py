"""The network between the nodes that will talk, measured by TCP sockets before anything is loaded.

There is a task on each node. The first node's task also leads: it pairs the nodes up in rounds, in which each
node talks to one other, and judges what they measure. Every wait has a bound, so a pair between which packets
are lost is named, instead of hanging as in MPI (docs/explanation/decisions/network.md).
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from statistics import median
from threading import Thread
from typing import Any, TypeAlias

from trtllm_hpc.errors import FAIL, WARN, Diagnostic, ExitCode, warn
from trtllm_hpc.paths import RunPaths, write_json, write_text
from trtllm_hpc.runtime.checks import report, sentence_of
from trtllm_hpc.runtime.node import interface_towards, own_address, remove_of_ended_jobs, task_number

_Pair: TypeAlias = tuple[int, int]
_Nodes: TypeAlias = dict[int, tuple[dict[str, Any], Any]]
"""What each node reports about itself, by its number within the job, and the connection to it."""

_MEETING = "TRTLLM_HPC_MEETING"
"""Environment variable with the place where the nodes meet, on the first node: ``address port key``."""
_ARRIVAL_S, _ANSWER_S, _WAIT_S, _KEY_S = 45.0, 15.0, 2.5, 0.5
"""How long the first node waits for the others and for what a pair has measured, and each node for a packet
(the kernel sends a lost one again after a second) and for the key of whoever calls it."""
_SEND_S, _RECEIVE_S, _PINGS, _CHUNK = 0.2, 0.15, 50, 256 * 1024
"""The receiver counts while the sender certainly sends."""
_SLOWER, _ETHERNET = 4, 0.12
"""A pair is slow below the median of all pairs divided by the first; the second is 1 Gb Ethernet, in GB/s."""
ALONE = "alone"
"""Code of a finding that only the node itself knows."""
_NOT_MEASURED = "Not measured: NCCL (ranks), UCX and NIXL (KV cache), which may take other interfaces."


@dataclass(frozen=True)
class Link:
    """What node ``a`` of a pair has measured: the median round trip, and GB/s in both directions."""

    pair: _Pair
    a: str
    b: str
    trip_us: float = 0.0
    there: float = 0.0
    back: float = 0.0
    rate: float = 0.0
    """The slower direction."""
    error: str | None = None


def check_network(paths: RunPaths, options: Namespace) -> int:
    """Measure with the other nodes; returns 0, or the exit code of a refused start."""
    remove_of_ended_jobs()  # the first step on each node, and outside the container
    host, (address, port, key) = socket.gethostname(), os.environ[_MEETING].split()
    peers = socket.create_server((own_address(options.interface), 0))
    Thread(target=_serve_peers, args=(peers, key), daemon=True).start()
    hello = {"key": key, "number": options.first + task_number(), "host": host, "at": peers.getsockname()}
    try:
        if hello["number"] == 0:
            meeting = socket.create_server((address, int(port)), backlog=options.nodes)
            Thread(target=_lead, args=(paths, options, meeting, key), daemon=True).start()
        findings = _follow(address, int(port), hello)
    except OSError as error:
        findings = [Diagnostic(ALONE, f"{host} and the first node, {address}, cannot talk: {error}")]
    if hello["number"] and all(it.code != ALONE for it in findings):  # the first node reports them
        return ExitCode.START if any(it.state == FAIL for it in findings) else ExitCode.OK
    return report_network(paths, findings)


def report_network(paths: RunPaths, findings: Iterable[Diagnostic], between: str = "") -> int:
    """Report what was found in the network, ``between`` whom; returns the exit code."""
    return report(paths, [replace(it, message=f"network: {between}{it.message}") for it in findings])


def _follow(address: str, port: int, hello: dict[str, Any]) -> list[Diagnostic]:
    """Measure with the peers that the first node names, until it sends what was found."""
    line, until = None, time.monotonic() + _ARRIVAL_S
    while line is None:
        try:
            line = socket.create_connection((address, port), _WAIT_S)
        except ConnectionRefusedError:  # its task may start later than this one
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    line.settimeout(None)
    stream = line.makefile("rwb")
    _say(stream, hello)
    for text in stream:
        order = json.loads(text)
        if "findings" in order:
            return [Diagnostic(**finding) for finding in order["findings"]]
        _say(stream, _measure(tuple(order["at"]), hello["key"]))
    raise ConnectionError("its task has ended")


def _say(stream: Any, record: Any) -> None:
    stream.write(json.dumps(record).encode() + b"\n")
    stream.flush()


def _measure(place: tuple[str, int], key: str) -> dict[str, Any]:
    """Return round trip and rates between this node and a peer, or what is wrong."""
    trips, wrong = list[float](), "{}"
    try:
        with socket.create_connection(place, _WAIT_S) as peer, peer.makefile("rwb") as stream:
            _say(stream, key)
            for _ in range(_PINGS):
                began = time.perf_counter()
                _say(stream, 0)
                if not stream.readline():
                    raise ConnectionError("the other node has closed the connection")
                trips.append(round((time.perf_counter() - began) * 1e6, 1))
            wrong = "small packets arrive, but not large ones (is the MTU the same everywhere?): {}"
            _send(stream)
            peer.shutdown(socket.SHUT_WR)
            there, back = float(stream.readline()), _receive(stream)
            return {"trip_us": median(trips), "there": there, "back": back, "rate": min(there, back)}
    except (OSError, ValueError) as error:
        return {"error": wrong.format(error)}


def _serve_peers(server: socket.socket, key: str) -> None:
    """Do the other side of a measurement, one peer after another; what goes wrong is reported there."""
    while True:
        peer, _ = server.accept()
        peer.settimeout(_KEY_S)  # another user may call
        with peer, suppress(OSError, ValueError, TypeError), peer.makefile("rwb") as stream:
            if hmac.compare_digest(stream.readline(100).decode().strip(), json.dumps(key)):
                peer.settimeout(_WAIT_S)
                for _ in range(_PINGS):
                    _say(stream, json.loads(stream.readline(10)))
                rate = _receive(stream)
                while stream.read(_CHUNK):
                    pass
                _say(stream, rate)
                _send(stream)


def _send(stream: Any) -> None:
    data, until = bytes(_CHUNK), time.monotonic() + _SEND_S
    while time.monotonic() < until:
        stream.write(data)
    stream.flush()


def _receive(stream: Any) -> float:
    """Return GB/s of what arrives from the first byte on."""
    buffer, total, began = bytearray(_CHUNK), len(stream.read(1)), time.monotonic()
    while time.monotonic() - began < _RECEIVE_S and (count := stream.readinto(buffer)):
        total += count
    return round(total / 1e9 / (time.monotonic() - began), 4)


def _lead(paths: RunPaths, options: Namespace, meeting: socket.socket, key: str) -> None:
    """Gather the nodes, have each pair measure, write the table, and send what was found."""
    began, nodes = time.monotonic(), _gather(meeting, key, options.nodes)
    if len(nodes) == options.nodes:
        links = [link for each in rounds(options.talking) for link in _round(each, nodes)]
        # What failed or looks slow is measured again, alone: other pairs may have been in the way. Not what
        # timed out: the kernel has sent its packets again by then.
        failed = [it for it in links if it.error and "timed out" not in it.error]
        for link in [*failed, *slow(links)][:3]:
            again = _round([link.pair], nodes)
            links[links.index(link)] = max(*again, link, key=lambda it: (it.error is None, it.rate))
        findings = judge(links, options.minimum or 0)
        said = list(map(sentence_of, findings))
        where = interface_towards(meeting.getsockname()[0])
        record: dict[str, Any] = {"transport": f"TCP sockets over {where}", "said": said}
        record |= {"seconds": round(time.monotonic() - began, 2), "links": [asdict(it) for it in links]}
        with suppress(OSError):  # a full disk is no fault of the network
            write_json(paths.network, record)
            write_text(paths.network_table, table(links, record))
    else:
        here = ", ".join(sorted(hello["host"] for hello, _ in nodes.values()))
        message = f"only {len(nodes)} of {options.nodes} nodes came within {_ARRIVAL_S:.0f} s: {here}"
        findings = [Diagnostic("", message)]
    for _, (_, stream) in sorted(nodes.items(), reverse=True):  # this process ends with the last answer
        with suppress(OSError):  # its task has ended
            _say(stream, {"findings": [it.as_json() for it in findings]})


def _gather(meeting: socket.socket, key: str, count: int) -> _Nodes:
    nodes: _Nodes = {}
    until = time.monotonic() + _ARRIVAL_S
    while len(nodes) < count and (left := until - time.monotonic()) > 0:
        meeting.settimeout(left)
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):  # another user may call
            line, _ = meeting.accept()
            line.settimeout(_WAIT_S)
            stream = line.makefile("rwb")
            hello = json.loads(stream.readline(1000))
            if hmac.compare_digest(hello["key"], key):
                line.settimeout(_ANSWER_S)
                nodes[hello["number"]] = hello, stream
    return nodes


def _round(pairs: Sequence[_Pair], nodes: _Nodes) -> list[Link]:
    """Have pairs measure at the same time."""
    links = []
    for one, other in pairs:
        with suppress(OSError):  # no figures will come, either
            _say(nodes[one][1], {"at": nodes[other][0]["at"]})
    for one, other in pairs:
        found: dict[str, Any] = {"error": f"no figures within {_ANSWER_S:.0f} s"}
        with suppress(OSError, ValueError):
            found = json.loads(nodes[one][1].readline() or b"-")
        links.append(Link((one, other), nodes[one][0]["host"], nodes[other][0]["host"], **found))
    return links


def rounds(talking: str) -> list[list[_Pair]]:
    """Return the pairs of nodes that stream in rounds, in each of which a node is in one pair at most."""
    pairs, found = set(), list[list[_Pair]]()
    for word in talking.split():
        ours, _, theirs = (
            [int(it) for it in part.split(",") if it.isdigit()] for part in word.partition(":")
        )
        pairs |= {(min(a, b), max(a, b)) for a in ours for b in theirs or ours if a != b}
    for pair in sorted(pairs):
        free = next((each for each in found if set(pair).isdisjoint(chain(*each))), None)
        if free is None:
            found.append(free := [])
        free.append(pair)
    return found


def slow(links: Sequence[Link]) -> list[Link]:
    """Return the pairs that are much slower than most, the slowest first."""
    good = sorted((link for link in links if not link.error), key=lambda link: link.rate)
    usual = median(link.rate for link in good) if good else 0.0
    return [link for link in good if link.rate < usual / _SLOWER]


def judge(links: Sequence[Link], minimum: float) -> list[Diagnostic]:
    """Return the faults, which end the job, or else what the user should know."""
    good = [link for link in links if not link.error]
    faults = [f"{link.a} and {link.b} cannot talk: {link.error}" for link in links if link.error]
    if below := [link for link in good if link.rate < minimum]:
        faults.append(f"{_named(below, good)}; preflight.minimum_gb_per_s is {minimum:g}")
    if faults:
        return [Diagnostic("", fault) for fault in faults]
    if (usual := median(link.rate for link in good)) < _ETHERNET:
        hint = "name the fast interface as network_interface in the profile"
        return [warn(f"{usual:.2f} GB/s between the nodes is no more than 1 Gb Ethernet", hint)]
    return [Diagnostic("", _named(late, good), state=WARN)] if (late := slow(links)) else []


def _named(late: Sequence[Link], links: Sequence[Link]) -> str:
    """Name the slow pairs by the node that most of them have: ``node3: 1.10 GB/s to node1``."""
    ends = [name for link in late for name in (link.a, link.b)]
    node = max(reversed(ends), key=ends.count)  # of a single pair the second: either may be at fault
    its = [link for link in late if node in (link.a, link.b)]
    parts = [f"{it.rate:.2f} GB/s to {it.b if it.a == node else it.a}" for it in its]
    parts += [f"{link.a} to {link.b} {link.rate:.2f} GB/s" for link in late if link not in its]
    if rates := [link.rate for link in links if link not in late]:
        parts.append(f"others {min(rates):.2f} to {max(rates):.2f} GB/s")
    return f"{node}: {', '.join(parts)}"


def table(links: Sequence[Link], record: dict[str, Any], who: str = "nodes that will talk") -> str:
    """Return what was measured, for a person."""
    wide = max((len(name) for link in links for name in (link.a, link.b)), default=4)
    rows = [f"The {who}, by {record['transport']}, measured in {record['seconds']:.1f} s", ""]
    rows.append(f"{'from':{wide}}  {'to':{wide}}  round trip       there        back")
    for it in links:
        figures = f"{it.trip_us:7.0f} us  {it.there:6.2f} GB/s  {it.back:6.2f} GB/s"
        rows.append(f"{it.a:{wide}}  {it.b:{wide}}  {it.error or figures}")
    return "\n".join([*rows, "", *record["said"], _NOT_MEASURED, ""])
