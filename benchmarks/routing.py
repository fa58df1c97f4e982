"""Where a conversation's requests go, and what that is worth: ``serve.routing`` least, session and prefix.

``python -m benchmarks.routing [--conversations 200] [--turns 6] [--rounds 3] [--json FILE]``

HAProxy has the configuration that ``trtllm-hpc`` renders for two instances with a key. Behind it are two
servers of ``benchmarks.prefix_server``, whose prompts take the time that a block cache leaves. In each round
all ways are measured in turn, each with fresh servers, but for the last:

- conversations with a common system prompt: the share of turns that reach their conversation's instance, the
  share of prompt tokens that were cached, and the time of later turns;
- one conversation 50 times heavier than each of 20 others: the most open requests of an instance;
- an instance that dies: the conversations go on;
- small requests without a wait: the median latency, and the rate at 32 at once. All ways ask the same
  servers, in turns of a quarter of a second, since fresh servers alone differ by a third.

Bounds: 99 % of turns, an imbalance within ``serve.routing_imbalance``, 0.1 ms added to the median, 0.95 of
the rate of ``least``. The exit code is 1 when one is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from benchmarks.arguments import number
from benchmarks.prefix_server import ANSWER
from trtllm_hpc.backends import facts_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.resolve import make_plan
from trtllm_hpc.render.scripts import render_scripts
from trtllm_hpc.runtime.door import threads, write_key
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.records import INSTANCE_HEADER, SESSION_HEADER

WAYS = ("least", "session", "prefix")
_START_LIMIT_S = 20.0
_AT_ONCE = 40
"""Conversations."""
_THINK_S = 0.3
_SMALL_TURN_S = 0.25
_SYSTEM = " ".join(f"rule{number}" for number in range(512))


class Servers:
    """HAProxy as rendered before ``count`` servers, or the servers at ``ports``; a context manager."""

    def __init__(
        self,
        folder: Path,
        routing: str,
        count: int = 2,
        server: Sequence[str] = (),
        ports: Sequence[int] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        [self._port, *fresh] = free_ports(1 if ports else count + 1)
        self.ports, self._started = list(ports or fresh), fresh
        serve = {"instances": count, "routing": routing}
        model = {"path": "/models/any", "synthetic": None}
        job = JobFile.model_validate(
            {"name": "routing", "model": model, "engine": {"backend": "pytorch"}, "serve": serve}
        )
        self.bound = job.serve.routing_imbalance
        facts = facts_of(job, ClusterProfile(name="here", gpus_per_node=count, partition="batch"))
        paths = RunPaths(folder)
        scripts = render_scripts(make_plan(facts, paths, sys.executable))
        (folder / "haproxy.cfg").write_text(scripts["haproxy.cfg"], encoding="utf-8")
        write_key(paths.key)
        self.headers = {"authorization": f"Bearer {paths.key.read_text(encoding='utf-8').strip()}"}
        (folder / "key.map").write_text(f"key {paths.key.read_text(encoding='utf-8')}", encoding="utf-8")
        (folder / "guests.map").touch()
        variables = {
            "TRTLLM_HPC_ADDRESS": "127.0.0.1",
            "TRTLLM_HPC_DOOR": str(folder),
            "TRTLLM_HPC_DOOR_THREADS": str(threads()),
            "TRTLLM_HPC_KEY": str(paths.key),
            "TRTLLM_HPC_PORT_OPENAI": str(self._port),
            **{f"TRTLLM_HPC_OPENAI_{at}": f"127.0.0.1:{port}" for at, port in enumerate(self.ports)},
        }
        self._door = ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")], {**os.environ, **variables}
        self._options = server
        self.url = f"http://127.0.0.1:{self._port}/v1/chat/completions"
        self.prompt_url = f"http://127.0.0.1:{self._port}/v1/completions"

    def __enter__(self) -> Servers:
        with ExitStack() as stack:
            self.processes = [self.start(port) for port in self._started]
            stack.callback(self._end_servers)
            door = stack.enter_context(subprocess.Popen(self._door[0], env=self._door[1]))
            stack.callback(door.terminate)
            asyncio.run(self.all_ready())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end_servers(self) -> None:
        for each in self.processes:
            each.terminate()
            each.wait(10)

    def start(self, port: int) -> subprocess.Popen[bytes]:
        """Start the server of an instance."""
        return subprocess.Popen([sys.executable, "-m", "benchmarks.prefix_server", str(port), *self._options])

    async def all_ready(self) -> None:
        """Wait until the door passes requests on to each instance. Raises TimeoutError."""
        end = time.monotonic() + _START_LIMIT_S
        async with self.session() as session:
            for at, port in enumerate(self.ports):
                body = {"messages": [{"role": "user", "content": "ready?"}]}
                chosen = {INSTANCE_HEADER: str(at)}
                while True:
                    with suppress(aiohttp.ClientError):
                        async with session.post(self.url, json=body, headers=chosen) as reply:
                            if reply.headers.get("x-instance") == str(port):
                                break
                    if time.monotonic() > end:
                        raise TimeoutError("the servers are not ready")
                    await asyncio.sleep(0.05)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Yield a client with the door's key."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(headers=self.headers, connector=connector) as session:
            yield session

    async def most_open(self) -> list[int]:
        """Return the most requests that each instance has had at once."""
        found = []
        async with aiohttp.ClientSession() as session:
            for port in self.ports:
                async with session.get(f"http://127.0.0.1:{port}/health") as reply:
                    found.append((await reply.json())["most"])
        return found


@dataclass
class Conversations:
    """What became of the turns of all conversations."""

    instances: list[list[str]] = field(default_factory=list)
    """For each conversation, the instance that answered each turn."""
    later_s: list[float] = field(default_factory=list)
    """Time of each turn but the first."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    lost: list[str] = field(default_factory=list)

    @property
    def kept(self) -> float:
        """Share of the turns that went to the instance of most of their conversation's turns."""
        most = [max(turns.count(each) for each in set(turns)) for turns in self.instances if turns]
        return sum(most) / sum(map(len, self.instances))


async def converse(
    servers: Servers, way: str, conversations: int, turns: int, words: int = 192
) -> Conversations:
    """Hold conversations, ``_AT_ONCE`` at once."""
    found, draw = Conversations(), random.Random(7)
    room = asyncio.Semaphore(_AT_ONCE)

    async def hold(session: aiohttp.ClientSession, name: int, pauses: Sequence[float]) -> None:
        messages = [{"role": "system", "content": _SYSTEM}]
        user = {"user": f"user {name}"} if way == "session" else {}
        reached: list[str] = []
        found.instances.append(reached)
        async with room:
            for turn, pause in enumerate(pauses):
                text = " ".join(f"w{name}.{turn}.{at}" for at in range(words))
                messages.append({"role": "user", "content": text})
                began, body = time.perf_counter(), {**user, "messages": messages}
                try:
                    async with session.post(servers.url, json=body) as reply:
                        answer: Mapping[str, Any] = await reply.json()
                        if reply.status != 200:
                            raise aiohttp.ClientError(f"{reply.status}: {answer}")
                except aiohttp.ClientError as error:
                    found.lost.append(repr(error))
                    continue
                if turn:
                    found.later_s.append(time.perf_counter() - began)
                reached.append(reply.headers["x-instance"])
                found.prompt_tokens += answer["usage"]["prompt_tokens"]
                found.cached_tokens += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                messages.append({"role": "assistant", "content": ANSWER})
                await asyncio.sleep(pause)

    async with servers.session() as session:
        plans = [[draw.expovariate(1 / _THINK_S) for _ in range(turns)] for _ in range(conversations)]
        await asyncio.gather(*(hold(session, name, pauses) for name, pauses in enumerate(plans)))
    return found


async def one_heavy(servers: Servers) -> float:
    """Return the largest share of open requests over an even share, with a conversation 50 times heavier."""
    async with servers.session() as session:

        async def ask(name: str) -> None:
            body = {"messages": [{"role": "user", "content": f"{name} " * 500}]}
            async with session.post(servers.url, json=body, headers={SESSION_HEADER: name}) as reply:
                await reply.read()

        others = [f"session {at}" for at in range(20)]
        await asyncio.gather(*(ask(name) for name in (*["heavy"] * 50, *others)))
    # All are open at once: the first ends long after the last has come.
    return max(await servers.most_open()) / ((50 + len(others)) / len(servers.ports))


async def small(servers: Servers, at_once: int, seconds: float) -> tuple[float, float]:
    """Return the median latency in ms, and the requests a second."""
    latencies: list[float] = []
    end, system = time.perf_counter() + seconds, {"role": "system", "content": _SYSTEM}
    async with servers.session() as session:

        async def loop() -> None:
            while (began := time.perf_counter()) < end:
                question = {"role": "user", "content": f"question {began}"}
                body = {"user": f"user {began}", "messages": [system, question]}
                async with session.post(servers.url, json=body) as reply:
                    await reply.read()
                latencies.append(time.perf_counter() - began)

        await asyncio.gather(*(loop() for _ in range(at_once)))
    return median(latencies) * 1e3, len(latencies) / seconds


def small_in_turns(folder: Path, seconds: float) -> dict[str, tuple[float, float]]:
    """Return for each way the median latency in ms alone, and the requests a second at 32 at once."""
    alone: dict[str, list[float]] = {way: [] for way in WAYS}
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        first = stack.enter_context(Servers(folder / WAYS[0], WAYS[0], server=("--token-us", "0")))
        others = [stack.enter_context(Servers(folder / way, way, ports=first.ports)) for way in WAYS[1:]]
        doors = list(zip(WAYS, [first, *others], strict=True))
        for turn in range(int(seconds / _SMALL_TURN_S)):
            for way, servers in doors[turn % len(doors) :] + doors[: turn % len(doors)]:
                alone[way].append(asyncio.run(small(servers, 1, _SMALL_TURN_S))[0])
                rates[way].append(asyncio.run(small(servers, 32, _SMALL_TURN_S))[1])
    return {way: (median(alone[way]), median(rates[way])) for way in WAYS}


async def while_one_dies(servers: Servers, way: str) -> Conversations:
    """Hold conversations while an instance is killed."""
    talking = asyncio.ensure_future(converse(servers, way, _AT_ONCE, 6))
    await asyncio.sleep(0.5)
    servers.processes[0].kill()
    return await talking


@dataclass
class Figures:
    """What one value of ``serve.routing`` gave in one round."""

    way: str
    kept: float
    cached: float
    later_p50_ms: float
    later_p95_ms: float
    imbalance: float
    median_ms: float
    rate: float
    lost_to_death: int

    def __str__(self) -> str:
        return (
            f"{self.way}: {self.kept:.1%} of turns at their instance, {self.cached:.0%} of tokens cached, "
            f"later turns {self.later_p50_ms:.1f} ms (p95 {self.later_p95_ms:.1f}), imbalance "
            f"{self.imbalance:.2f}, alone {self.median_ms:.2f} ms, {self.rate:.0f} requests/s, "
            f"{self.lost_to_death} lost as an instance died"
        )


def measure(folder: Path, way: str, conversations: int, turns: int, cost: tuple[float, float]) -> Figures:
    """Measure one way, whose ``cost`` is known: the latency of a small request, and their rate."""
    with Servers(folder / "conversations", way) as servers:
        held = asyncio.run(converse(servers, way, conversations, turns))
    with Servers(folder / "heavy", way) as servers:
        imbalance = asyncio.run(one_heavy(servers))
    with Servers(folder / "death", way) as servers:
        lost = asyncio.run(while_one_dies(servers, way)).lost
    later = sorted(held.later_s)
    return Figures(
        way,
        held.kept,
        held.cached_tokens / held.prompt_tokens,
        median(later) * 1e3,
        later[int(len(later) * 0.95)] * 1e3,
        imbalance,
        *cost,
        len(lost),
    )


def faults(rows: Sequence[Figures], bound: float) -> list[str]:
    """Return what is broken, by the medians of all rounds."""
    found = []
    by_way = {way: [row for row in rows if row.way == way] for way in WAYS}
    for way in ("session", "prefix"):
        pairs = list(zip(by_way[way], by_way["least"], strict=True))
        kept = min(row.kept for row in by_way[way])
        added = median(row.median_ms - least.median_ms for row, least in pairs)
        rate = median(row.rate / least.rate for row, least in pairs)
        imbalance = max(row.imbalance for row in by_way[way])
        print(f"{way}: {added:+.3f} ms at the median, {rate:.3f} of the rate of least")
        for name, value, holds in (
            ("turns at their instance", kept, kept >= 0.99),
            ("imbalance", imbalance, imbalance <= bound + 0.05),
            ("ms added", added, added <= 0.1),
            ("of the rate", rate, rate >= 0.95),
        ):
            if not holds:
                found.append(f"{way}: {name}: {value:.3f}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing", description=__doc__)
    parser.add_argument("--conversations", type=number, default=200, metavar="N")
    parser.add_argument("--turns", type=number, default=6, metavar="N")
    parser.add_argument("--rounds", type=number, default=3, metavar="N")
    parser.add_argument(
        "--seconds", type=float, default=4.0, metavar="S", help="of each load of small requests"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args(arguments)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="routing-") as folder:
        for turn in range(options.rounds):
            costs = small_in_turns(Path(folder) / f"{turn}-small", options.seconds)
            for way in WAYS[:: -1 if turn % 2 else 1]:
                where = Path(folder) / f"{turn}-{way}"
                rows.append(measure(where, way, options.conversations, options.turns, costs[way]))
                print(rows[-1], flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    broken = faults(rows, 1.75)
    print("\n".join(f"BROKEN: {each}" for each in broken) or "all bounds kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
