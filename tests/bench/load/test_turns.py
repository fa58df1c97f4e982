"""Conversations under load: what each turn repeats, when it is sent, and what ends a conversation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bench.load.grpc_server import Behaviour, grpc_server
from tests.bench.openai_server import DONE, Script, delta, event, openai_server
from trtllm_hpc.bench.load.loops import ClosedPlan, LoadPlan, LoadResult, OpenPlan
from trtllm_hpc.bench.load.messages import Target, encode_request
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock, KernelTimer
from trtllm_hpc.bench.load.turns import Conversation
from trtllm_hpc.bench.workload.request import WorkloadRequest
from trtllm_hpc.runtime.records import Endpoint

SYSTEM = [{"role": "system", "content": "be kind"}]
THINK_S = 0.05


@pytest.fixture
def script() -> Script:
    """Thinks, then answers in two events."""
    return Script([delta(reasoning_content="hm"), 0.01, delta("GR"), delta("ÜN"), DONE])


@pytest.fixture
def endpoint(script: Script) -> Iterator[Endpoint]:
    with openai_server(script) as ready:
        yield ready


def talks(count: int, turns: int = 3, **later: Any) -> list[Conversation]:
    later = {"think_s": THINK_S, **later}
    return [
        Conversation(
            number * turns,
            [
                WorkloadRequest(
                    9,
                    f"q{number}.{turn}",
                    session=f"s{number}",
                    turn=turn,
                    **({"said": SYSTEM} if turn == 1 else later),
                )
                for turn in range(1, turns + 1)
            ],
        )
        for number in range(count)
    ]


def load(
    endpoint: Endpoint, found: list[Conversation], kind: type[LoadPlan], *more: Any, **rest: Any
) -> LoadResult:
    protocol: Any = "grpc" if endpoint.grpc_port else rest.pop("protocol", "openai-chat")
    target = Target(endpoint, "one", protocol=protocol, streaming=protocol != "grpc", timeout_s=10)
    processes = rest.pop("processes", 1)
    payloads = [encode_request(each.turns[0], target) for each in found]
    return run_load(kind(target, payloads, Clock(), *more, conversations=found, **rest), processes=processes)


def test_each_turn_repeats_what_was_said_with_the_servers_answers(endpoint: Endpoint, script: Script) -> None:
    result = load(endpoint, talks(1), OpenPlan, [0.0])
    assert [reply.index for reply in result.replies] == [0, 1, 2]
    answer = {"role": "assistant", "content": "GRÜN"}
    questions = [{"role": "user", "content": f"q0.{turn}"} for turn in (1, 2, 3)]
    assert [body["messages"] for body in script.bodies] == [
        [*SYSTEM, questions[0]],
        [*SYSTEM, questions[0], answer, questions[1]],
        [*SYSTEM, questions[0], answer, questions[1], answer, questions[2]],
    ]
    assert script.sessions == ["s0"] * 3
    for before, after in zip(result.replies, result.replies[1:], strict=False):
        assert after.due_s == pytest.approx(before.ended_s + THINK_S)
        assert after.sent_s >= after.due_s


def test_without_a_chat_the_prompt_has_a_line_for_each_message(endpoint: Endpoint, script: Script) -> None:
    script.pieces = [event("so"), DONE]
    load(endpoint, talks(1, 2), OpenPlan, [0.0], protocol="openai")
    assert [body["prompt"] for body in script.bodies] == ["be kind\nq0.1", "be kind\nq0.1\nso\nq0.2"]


def test_a_slot_is_free_when_its_conversation_is_over(endpoint: Endpoint, script: Script) -> None:
    result = load(endpoint, talks(4, 2), ClosedPlan, 2, 5)
    ends = {reply.session: reply.ended_s for reply in result.replies}
    [third] = [reply for reply in result.replies if reply.index == 4]
    assert len(result.replies) == 10 and third.due_s == min(ends["s0"], ends["s1"])
    # The fifth conversation is the first once more, under another name.
    assert {session for session in script.sessions if session not in {"s0", "s1", "s2", "s3"}} == {"s0-2"}


def test_a_conversation_ends_with_a_failed_turn_or_at_the_end_of_the_window(
    endpoint: Endpoint, script: Script
) -> None:
    assert len(load(endpoint, talks(2), OpenPlan, [0.0, 0.0], until_s=THINK_S).replies) == 2
    script.body, script.status = b"{}", 500
    assert len(load(endpoint, talks(2), OpenPlan, [0.0, 0.0]).replies) == 2


def test_over_grpc_the_conversation_is_named_in_a_header_of_its_own_call() -> None:
    class Named(Behaviour):
        def __init__(self) -> None:
            super().__init__()
            self.sessions: list[str] = []

        def service(self, details: Any) -> Any:
            self.sessions += [value for name, value in details.invocation_metadata if name == "x-session-id"]
            return super().service(details)

    behaviour = Named()
    with grpc_server(behaviour=behaviour) as endpoint:
        result = load(endpoint, talks(3), ClosedPlan, 2, 3)
    assert [reply.status for reply in result.replies] == ["ok"] * 9
    assert sorted(behaviour.sessions) == sorted(["s0", "s1", "s2"] * 3)


def test_a_timer_that_is_set_again_when_it_has_expired_goes_off_later() -> None:
    async def run() -> tuple[float, float]:
        loop, gone_off = asyncio.get_running_loop(), asyncio.Event()
        failures: list[Any] = []
        loop.set_exception_handler(lambda _, context: failures.append(context))
        with KernelTimer(lambda: gone_off.set() if time.monotonic() >= later else None) as timer:
            later = time.monotonic() + 0.05
            timer.set(time.monotonic())
            loop.call_soon(timer.set, later)  # before the loop sees that it has expired
            await asyncio.wait_for(gone_off.wait(), 5)
        assert not failures
        return later, time.monotonic()

    later, now = asyncio.run(run())
    assert now >= later
