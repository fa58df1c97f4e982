"""What the door costs: a real tritonserver asked through HAProxy, and beside that directly.

``python -m benchmarks.door [--rounds 7] [--seconds 4] [--json FILE]``

The server has the two models of ``benchmarks.load_generator``. HAProxy has the
configuration that ``trtllm-hpc`` renders for a run with one instance and a key,
but reaches the server over TCP: so both ways lead to the same server. In each
round they are measured in turn, in either order, by the load generator of ``trtllm-hpc
bench``: one request at a time, a closed loop of 32 small requests, 64 paced
streams, and more streams than the server can serve.

Figures are medians over the rounds; differences and ratios are medians of each
round's own. Bounds: added median latency below 1 ms, added inter-token time
below 1 ms at p99, at least 0.9 of the streamed tokens a second and 0.8 of the
rate of small requests. The exit code is 1 when one is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.arguments import number
from benchmarks.load import ours
from benchmarks.load.figures import Figures
from benchmarks.load.server import running_server
from benchmarks.triton import ServerFailed
from trtllm_hpc.backends import facts_of
from trtllm_hpc.client.single_calls import not_ready
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.resolve import make_plan
from trtllm_hpc.render.scripts import render_scripts
from trtllm_hpc.runtime.certificate import make_certificate
from trtllm_hpc.runtime.door import TRITON_KINDS, connections, threads, write_key
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.records import Endpoint

_START_LIMIT_S = 10.0
_PACED, _TOO_MANY = 64, 256
"""Streams of 50 tokens a second; Triton's Python backend sends some 7,000 responses a second on two cores."""


@dataclass(frozen=True)
class Scenario:
    """What is measured, and the bound on it."""

    name: str
    unit: str
    measure: Callable[[Endpoint, float], Figures]
    figure: Callable[[Figures], float]
    bound: float
    is_ratio: bool
    """The bound is on door over direct, at least; otherwise on door minus direct, at most."""

    def compare(self, door: float, direct: float) -> float:
        """The ratio or the difference."""
        return door / direct if self.is_ratio else door - direct

    def holds(self, value: float) -> bool:
        """Whether a ratio or difference keeps the bound."""
        return value >= self.bound if self.is_ratio else value < self.bound


SCENARIOS = (
    Scenario(
        "one request at a time: latency, median",
        "ms",
        lambda endpoint, seconds: ours.closed(endpoint, 1, seconds),
        lambda figures: figures.p50_ms or 0.0,
        1.0,
        is_ratio=False,
    ),
    Scenario(
        "32 small requests at once: requests/s",
        "1/s",
        lambda endpoint, seconds: ours.closed(endpoint, 32, seconds),
        lambda figures: figures.rate_per_s or 0.0,
        0.8,
        is_ratio=True,
    ),
    Scenario(
        f"{_PACED} paced streams: inter-token time against the server's stamps, p99",
        "ms",
        lambda endpoint, seconds: ours.streams(endpoint, _PACED, seconds),
        lambda figures: figures.gap_error_p99_ms or 0.0,
        1.0,
        is_ratio=False,
    ),
    Scenario(
        f"{_TOO_MANY} streams, more than the server can serve: tokens/s",
        "1/s",
        lambda endpoint, seconds: ours.streams(endpoint, _TOO_MANY, seconds),
        lambda figures: figures.rate_per_s or 0.0,
        0.9,
        is_ratio=True,
    ),
)


@contextmanager
def open_door(folder: Path, server: Endpoint, *, tls: bool = False) -> Iterator[tuple[Endpoint, int]]:
    """Run HAProxy before a server; yield the endpoint of the door, and the process id.

    Raises:
        ServerFailed: HAProxy did not start.
    """
    serve = {"door": "haproxy", "openai": "none", "tls": tls}
    job = JobFile.model_validate({"name": "door", "serve": serve})
    facts = facts_of(job, ClusterProfile(name="here", scheduler="local"))
    paths = RunPaths(folder)
    scripts = render_scripts(make_plan(facts, paths, sys.executable))
    configuration = folder / "haproxy.cfg"
    configuration.write_text(scripts["haproxy.cfg"], encoding="utf-8")
    write_key(paths.key)
    (folder / "key.map").write_text(f"key {paths.key.read_text()}", encoding="utf-8")
    (folder / "guests.map").touch()
    if tls:
        make_certificate(paths, "127.0.0.1")
    ports = dict(zip(TRITON_KINDS, free_ports(len(TRITON_KINDS)), strict=True))
    behind = {"HTTP": server.http, "GRPC": server.grpc, "METRICS": f"127.0.0.1:{server.metrics_port}"}
    variables = {
        "TRTLLM_HPC_ADDRESS": "127.0.0.1",
        "TRTLLM_HPC_DOOR": str(folder),
        "TRTLLM_HPC_DOOR_THREADS": str(threads()),
        "TRTLLM_HPC_DOOR_CONNECTIONS": str(connections()),
        "TRTLLM_HPC_KEY": str(paths.key),
        "TRTLLM_HPC_CERTIFICATE": str(paths.certificate),
        "TRTLLM_HPC_CERTIFICATE_KEY": str(paths.certificate_key),
        **{f"TRTLLM_HPC_PORT_{kind.upper()}": str(port) for kind, port in ports.items()},
        **{f"TRTLLM_HPC_{kind}_0": address for kind, address in behind.items()},
    }
    command = ["haproxy", "-db", "-f", str(configuration)]
    process = subprocess.Popen(command, env={**os.environ, **variables})
    door = replace(
        server,
        http_port=ports["http"],
        grpc_port=ports["grpc"],
        metrics_port=ports["metrics"],
        key_file=str(paths.key),
        certificate_file=str(paths.certificate) if tls else None,
    )
    try:
        end = time.monotonic() + _START_LIMIT_S
        while not_ready(door, 1.0):
            if process.poll() is not None or time.monotonic() > end:
                raise ServerFailed("HAProxy did not start, or does not find the server ready")
            time.sleep(0.1)
        yield door, process.pid
    finally:
        process.terminate()
        process.wait(10)


@dataclass(frozen=True)
class Row:
    """The figures of a scenario: medians over the rounds."""

    scenario: str
    unit: str
    direct: float
    door: float
    compared: float
    """Door over direct, or door minus direct."""
    lowest: float
    highest: float
    bound: str
    holds: bool

    def __str__(self) -> str:
        return (
            f"{self.scenario}: direct {self.direct:.4g}, door {self.door:.4g} {self.unit}; compared "
            f"{self.compared:.3g} ({self.lowest:.3g} to {self.highest:.3g}), must be {self.bound}: "
            f"{'kept' if self.holds else 'BROKEN'}"
        )


def measure(scenario: Scenario, ways: Mapping[str, Endpoint], rounds: int, seconds: float) -> Row:
    """Measure both ways in turn."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds):
        for way in sorted(ways, reverse=bool(turn % 2)):
            found[way].append(scenario.figure(scenario.measure(ways[way], seconds)))
    compared = [scenario.compare(*pair) for pair in zip(found["door"], found["direct"], strict=True)]
    return Row(
        scenario.name,
        scenario.unit,
        direct=median(found["direct"]),
        door=median(found["door"]),
        compared=median(compared),
        lowest=min(compared),
        highest=max(compared),
        bound=f"{'at least' if scenario.is_ratio else 'below'} {scenario.bound}",
        holds=scenario.holds(median(compared)),
    )


def _cost(ways: Mapping[str, Endpoint], pid: int, seconds: float) -> str:
    """What explains a lower rate where the door shares two cores with the server and the client."""
    before = _cpu_s(pid)
    figures = ours.closed(ways["door"], 32, seconds)
    door_us = (_cpu_s(pid) - before) / ((figures.rate_per_s or 0.0) * seconds) * 1e6
    all_us = (os.cpu_count() or 1) / (ours.closed(ways["direct"], 32, seconds).rate_per_s or 1.0) * 1e6
    return (
        f"a small request takes {door_us:.0f} us of HAProxy's time, directly {all_us:.0f} us of all cores: "
        f"where all are busy, a ratio of {all_us / (all_us + door_us):.2f} at best"
    )


def _cpu_s(pid: int) -> float:
    """CPU time of a process so far: proc(5), fields 14 and 15 of stat."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.door", description=__doc__)
    parser.add_argument("--rounds", type=number, default=7, metavar="N")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="of each measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args(arguments)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}", flush=True)
    with tempfile.TemporaryDirectory(prefix="door-") as folder:
        try:
            with (
                running_server(Path(folder)) as server,
                open_door(Path(folder), server.endpoint) as (door, pid),
            ):
                ways = {"direct": server.endpoint, "door": door}
                rows = []
                for scenario in SCENARIOS:
                    rows.append(measure(scenario, ways, options.rounds, options.seconds))
                    print(rows[-1], flush=True)
                print(_cost(ways, pid, options.seconds), flush=True)
        except ServerFailed as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
