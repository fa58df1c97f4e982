"""``serve.routing``: a real HAProxy, as rendered, before servers that say which of them has answered."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.routing import Servers, converse, one_heavy
from tests.waiting import eventually
from trtllm_hpc.runtime.records import SESSION_HEADER

pytestmark = pytest.mark.skipif(
    shutil.which("haproxy") is None, reason="haproxy is not installed (.ci/test does)"
)

QUICK = ("--token-us", "0")


@pytest.fixture(scope="module")
def by_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("session"), "session", server=QUICK) as servers:
        yield servers


@pytest.fixture(scope="module")
def by_prefix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("prefix"), "prefix", server=QUICK) as servers:
        yield servers


def reached(servers: Servers, *bodies: bytes, headers: Mapping[str, str] | None = None) -> list[str]:
    """Return which instance answers each body; a body with a prompt is one of completions."""

    async def ask() -> list[str]:
        found = []
        async with servers.session() as session:
            for body in bodies:
                url = servers.prompt_url if b'"prompt"' in body else servers.url
                async with session.post(url, data=body, headers=headers) as reply:
                    assert reply.status == 200, await reply.text()
                    found.append(reply.headers["x-instance"])
        return found

    return asyncio.run(ask())


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def chat(*messages: dict[str, Any], ascii_only: bool = True, **others: Any) -> bytes:
    return json.dumps({**others, "messages": messages}, ensure_ascii=ascii_only).encode()


LONG = "A rule that all conversations share. " * 2500
SHAPES = {
    "texts": (said("system", "Be brief."), "Who is {}?"),
    "parts": (
        said("system", [{"type": "text", "text": "Be brief."}]),
        [{"type": "text", "text": "Who is {}?"}],
    ),
    "other letters": (said("developer", "简短"), '谁是{}? \\u "quoted" é'),
    "no system prompt": (None, "Who is {}?"),
    "a long system prompt": (said("system", LONG[:40_000]), "Who is {}?"),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_turns_of_a_chat_reach_one_instance_and_chats_are_spread(
    by_prefix: Servers, shape: str, ascii_only: bool
) -> None:
    system, question = SHAPES[shape]
    chosen = set()
    for name in range(12):
        text = json.loads(json.dumps(question).replace("{}", f"person {name}"))
        first = [*([] if system is None else [system]), said("user", text)]
        second = [*first, said("assistant", f"[{{}}] answer {name}"), said("user", "Why?")]
        turns = [chat(*first, ascii_only=ascii_only), chat(*second, ascii_only=ascii_only, stream=False)]
        found = set(reached(by_prefix, *turns))
        assert len(found) == 1, name
        chosen |= found
    assert len(chosen) == 2


def test_prompts_that_begin_alike_reach_one_instance(by_prefix: Servers) -> None:
    chosen = set()
    for name in range(12):
        begins = f"Person {name}: " * 200
        bodies = [
            json.dumps({"prompt": begins + rest}).encode() for rest in ("Hello.", "Hello. Who is there?")
        ]
        found = set(reached(by_prefix, *bodies))
        assert len(found) == 1
        chosen |= found
    assert len(chosen) == 2


def test_a_chat_that_is_longer_than_the_door_reads_is_known_by_how_it_begins(by_prefix: Servers) -> None:
    first = [said("system", LONG), said("user", "Who?")]
    bodies = [chat(*first), chat(*first, said("assistant", "I."), said("user", "Why?"))]
    assert len(set(reached(by_prefix, *bodies * 3))) == 1


@pytest.mark.parametrize("way", ["by_session", "by_prefix"])
def test_a_session_is_known_by_its_header_whatever_is_asked(way: str, request: pytest.FixtureRequest) -> None:
    servers, chosen = request.getfixturevalue(way), set()
    for name in range(12):
        bodies = [chat(said("user", f"Question {at}")) for at in range(3)]
        found = set(reached(servers, *bodies, headers={SESSION_HEADER: f"session {name}"}))
        assert len(found) == 1
        chosen |= found
    assert len(chosen) == 2


def test_a_session_is_known_by_openais_user(by_session: Servers) -> None:
    chosen = set()
    for name in range(12):
        bodies = [chat(said("user", f"Question {at}"), user=f"user {name}") for at in range(3)]
        found = set(reached(by_session, *bodies))
        assert len(found) == 1
        chosen |= found
    assert len(chosen) == 2


def test_requests_of_no_session_go_to_all_instances(by_session: Servers) -> None:
    assert len(set(reached(by_session, *[chat(said("user", "Who?"))] * 20))) == 2


def test_the_page_of_each_instance_for_prometheus_and_the_doors_own(by_session: Servers) -> None:
    root = by_session.url.removesuffix("/v1/chat/completions")

    async def pages() -> list[str]:
        async with by_session.session() as session:
            found = []
            for at in (0, 1):
                async with session.get(f"{root}/prometheus/metrics/{at}") as reply:
                    found.append(reply.headers["x-instance"])
            async with session.get(f"{root}/metrics/door") as reply:
                return [*found, await reply.text()]

    *instances, door = asyncio.run(pages())
    assert instances == [str(port) for port in by_session.ports]
    for at in (0, 1):
        assert f'haproxy_server_status{{proxy="openai",server="instance{at}",state="UP"}} 1' in door


def test_a_heavy_session_leaves_its_instance_for_what_is_too_much(tmp_path: Path) -> None:
    with Servers(tmp_path, "session", server=("--token-us", "60")) as servers:
        assert asyncio.run(one_heavy(servers)) <= servers.bound + 0.05


def test_conversations_go_on_when_their_instance_dies_and_return_when_it_is_back(tmp_path: Path) -> None:
    with Servers(tmp_path, "prefix", server=QUICK) as servers:
        bodies = [chat(said("user", f"Question {name}")) for name in range(10)]
        before = reached(servers, *bodies)
        gone = servers.ports[0]
        assert str(gone) in before
        servers.processes[0].kill()
        servers.processes[0].wait()
        assert set(reached(servers, *bodies)) == {str(servers.ports[1])}
        servers.processes[0] = servers.start(gone)
        assert eventually(lambda: reached(servers, *bodies) == before, 10)


def test_turns_stay_with_their_instance_under_load(by_prefix: Servers) -> None:
    assert asyncio.run(converse(by_prefix, "prefix", 30, 3)).kept >= 0.99
