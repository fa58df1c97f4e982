"""``serve.routing``: a real HAProxy, as rendered, before servers that name themselves in each answer."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.waiting import eventually
from trtllm_hpc.backends import facts_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import make_plan
from trtllm_hpc.render.scripts import render_scripts
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.proxy import threads, write_key
from trtllm_hpc.runtime.records import INSTANCE_HEADER, SESSION_HEADER

pytestmark = pytest.mark.skipif(
    shutil.which("haproxy") is None, reason="haproxy is not installed (.ci/test does)"
)


class Servers:
    """HAProxy as rendered for ``serve.routing: session``, before two servers; a context manager."""

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        port, *self.ports = free_ports(3)
        self._seconds = seconds
        job = JobFile.model_validate(
            {
                "name": "routing",
                "model": {"path": "/models/any", "synthetic": None},
                "engine": {"backend": "pytorch"},
                "serve": {"instances": 2, "routing": "session"},
            }
        )
        self.bound = 1.75
        facts = facts_of(job, ClusterProfile(name="here", gpus_per_node=2, partition="batch"))
        paths = RunPaths(folder)
        scripts = render_scripts(make_plan(facts, paths, sys.executable))
        configuration = folder / "haproxy.cfg"
        configuration.write_text(scripts["haproxy.cfg"], encoding="utf-8")
        write_key(paths.key)
        key = paths.key.read_text(encoding="utf-8")
        self.headers = {"authorization": f"Bearer {key.strip()}"}
        (folder / "key.map").write_text(f"key {key}", encoding="utf-8")
        (folder / "guests.map").touch()
        self._proxy = ["haproxy", "-db", "-f", str(configuration)]
        self._environment = {
            "TRTLLM_HPC_ADDRESS": "127.0.0.1",
            "TRTLLM_HPC_PROXY": str(folder),
            "TRTLLM_HPC_PROXY_THREADS": str(threads()),
            "TRTLLM_HPC_KEY": str(paths.key),
            "TRTLLM_HPC_PORT_OPENAI": str(port),
            **{f"TRTLLM_HPC_OPENAI_{at}": f"127.0.0.1:{server}" for at, server in enumerate(self.ports)},
        }
        self.url = f"http://127.0.0.1:{port}/v1/chat/completions"

    def __enter__(self) -> Servers:
        with ExitStack() as stack:
            self.processes = [self.start(port) for port in self.ports]
            stack.callback(self._end_servers)
            environment = {**os.environ, **self._environment}
            proxy = stack.enter_context(subprocess.Popen(self._proxy, env=environment))
            stack.callback(proxy.terminate)
            for at, port in enumerate(self.ports):
                assert eventually(partial(self._reaches, at, port), 20)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end_servers(self) -> None:
        for process in self.processes:
            process.terminate()
            process.wait(10)

    def start(self, port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.runtime.answering_server", str(port), str(self._seconds)]
        return subprocess.Popen(command)

    def _reaches(self, instance: int, port: int) -> bool:
        try:
            return reached(self, chat("ready?"), headers={INSTANCE_HEADER: str(instance)}) == [str(port)]
        except aiohttp.ClientError:
            return False

    def session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(headers=self.headers, connector=aiohttp.TCPConnector(limit=0))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("session")) as started:
        yield started


def chat(text: str, **others: Any) -> bytes:
    return json.dumps({**others, "messages": [{"role": "user", "content": text}]}).encode()


def reached(servers: Servers, *bodies: bytes, headers: Mapping[str, str] | None = None) -> list[str]:
    """Return the port of the server that answers each body."""

    async def ask() -> list[str]:
        ports = []
        async with servers.session() as session:
            for body in bodies:
                async with session.post(servers.url, data=body, headers=headers) as reply:
                    if reply.status != 200:
                        raise aiohttp.ClientError(await reply.text())
                    ports.append(reply.headers["x-instance"])
        return ports

    return asyncio.run(ask())


@pytest.mark.parametrize("by", ["header", "user"])
def test_a_session_stays_at_one_instance_and_sessions_are_spread(servers: Servers, by: str) -> None:
    chosen = set()
    for name in (f"session {number}, 谁" for number in range(12)):
        user = {"user": name} if by == "user" else {}
        headers = {SESSION_HEADER: name.encode().hex()} if by == "header" else None
        ports = set(reached(servers, *[chat(f"Question {at}", **user) for at in range(3)], headers=headers))
        assert len(ports) == 1
        chosen |= ports
    assert len(chosen) == 2


def test_a_heavy_session_leaves_its_instance_for_what_is_too_much(tmp_path: Path) -> None:
    others = [f"session {at}" for at in range(20)]
    names = [*["heavy"] * 50, *others]

    async def most_open(servers: Servers) -> list[int]:
        async with servers.session() as session:

            async def ask(name: str) -> None:
                async with session.post(
                    servers.url, data=chat("Who?"), headers={SESSION_HEADER: name}
                ) as reply:
                    await reply.read()

            await asyncio.gather(*map(ask, names))
        found = []
        async with aiohttp.ClientSession() as direct:
            for port in servers.ports:
                async with direct.get(f"http://127.0.0.1:{port}/health") as reply:
                    found.append((await reply.json())["most"])
        return found

    # The first answer comes long after the last question: all are open at once.
    with Servers(tmp_path, seconds=0.03) as servers:
        assert max(asyncio.run(most_open(servers))) / (len(names) / 2) <= servers.bound + 0.05


def test_sessions_go_on_when_their_instance_dies_and_return_when_it_is_back(tmp_path: Path) -> None:
    with Servers(tmp_path) as servers:
        bodies = [chat("Who?", user=f"user {name}") for name in range(10)]
        before = reached(servers, *bodies)
        gone = servers.ports[0]
        assert str(gone) in before
        servers.processes[0].kill()
        servers.processes[0].wait()
        assert set(reached(servers, *bodies)) == {str(servers.ports[1])}
        servers.processes[0] = servers.start(gone)
        assert eventually(lambda: reached(servers, *bodies) == before, 10)
