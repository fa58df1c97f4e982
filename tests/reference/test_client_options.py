"""Every option of a request has its effect on a real server, through the client's own functions."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest

from tests.schemas.check import documented
from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.client.connect import Protocol
from trtllm_hpc.client.request import Answer
from trtllm_hpc.errors import ExitCode, InvalidRequest, RequestFailed
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Endpoint

from .clients import steps, wait_idle, wait_until
from .conftest import AskRun
from .servers import World

pytestmark = pytest.mark.triton

PROMPT = "What is machine learning?"
TEXT_MODELS = ("ensemble", "tensorrt_llm_bls")
MODELS = ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls"]


class Asked:
    """One model, asked with options; answers have eight tokens and no prompt unless an option says so."""

    def __init__(self, endpoint: Endpoint, model: str, protocol: Protocol = "grpc") -> None:
        self._endpoint = endpoint
        self._model = model
        self._protocol: Protocol = protocol

    def __call__(
        self,
        *,
        stream: bool = False,
        on_text: Callable[[str], object] | None = None,
        ended: asyncio.Event | None = None,
        **options: Any,
    ) -> Answer:
        async def ask() -> Answer:
            async with AsyncClient(self._endpoint, self._model, protocol=self._protocol) as client:
                request = client.request((PROMPT,), given)
                [answer] = await client.ask(replace(request, stream=stream), on_text, ended)
                return answer

        defaults = {"max_tokens": 8, "exclude_input": True, "end_id": -1}
        given = {name: it for name, it in {**defaults, **options}.items() if it is not None}
        return asyncio.run(ask())


@pytest.fixture(params=product(TEXT_MODELS, ("grpc", "http")), ids="-".join)
def ask(request: pytest.FixtureRequest, endpoint: Endpoint) -> Asked:
    """A text model over either protocol."""
    return Asked(endpoint, *request.param)


@pytest.fixture(params=TEXT_MODELS)
def over_grpc(request: pytest.FixtureRequest, endpoint: Endpoint) -> Asked:
    return Asked(endpoint, request.param)


@pytest.fixture
def ensemble(endpoint: Endpoint) -> Asked:
    return Asked(endpoint, "ensemble")


def test_options_have_their_effect(ask: Asked, ensemble: Asked) -> None:
    greedy = ask(log_probs=True)
    assert greedy.log_probs is not None and len(greedy.log_probs) == 8
    sampled: dict[str, Any] = {"temperature": 5.0, "top_k": 50, "top_p": 0.9, "seed": 2**63 + 1}
    again = ask(**sampled).text
    assert ensemble(**sampled).text == again != greedy.text
    assert len(ask(max_tokens=3, min_tokens=3, log_probs=True).log_probs or ()) == 3
    assert ask(exclude_input=False).text == PROMPT + greedy.text
    assert ask(max_tokens=40, repetition_penalty=5.0).text != ask(max_tokens=40).text
    for name in ("presence_penalty", "frequency_penalty"):
        penalty: dict[str, Any] = {name: 5.0}
        with pytest.raises(RequestFailed, match=f"{name} asks for"):
            ask(**penalty)


def test_an_answer_ends_after_a_stop_word(ask: Asked) -> None:
    texts = ["", *(ask(max_tokens=count).text for count in range(1, 9))]
    tokens = [after.removeprefix(before) for before, after in pairwise(texts)]
    word = next(token for token in tokens if token.isascii() and token.isalnum())
    assert len(ask(stop_words=[word]).text) < len(texts[-1])


def test_a_stream_says_what_the_whole_answer_says(ask: Asked) -> None:
    for _ in range(5):
        shown: list[str] = []
        answer = ask(stream=True, on_text=shown.append, max_tokens=12, end_id=None)
        if len(shown) > 2:
            break  # on a busy machine a part may have several tokens
    assert len(shown) > 2
    assert "".join(shown) == answer.text == ask(max_tokens=12, end_id=None).text
    assert answer.first_text_s is not None and answer.first_text_s < answer.latency_s


LENGTH = 400
"""Tokens of an answer that is ended early."""


def ended_on_the_server(alone: World, answer: Callable[[], Answer | None]) -> Answer:
    """An answer that its client has ended, and for which the engine then made fewer steps than tokens.

    ``None`` is one that was over before. On a fast machine that may happen, so there are several attempts.
    """
    for _ in range(10):
        wait_idle(alone)
        before = steps(alone)
        found = answer()
        wait_until(lambda before=before: steps(alone) > before)  # type: ignore[misc]
        wait_idle(alone)
        if found is not None and steps(alone) - before < LENGTH:
            return found
    raise AssertionError("no answer was ended before it was over")


def test_an_answer_that_is_interrupted_is_ended_on_the_server(over_grpc: Asked, alone: World) -> None:
    shown: list[str] = []

    def interrupted() -> Answer | None:
        ended = asyncio.Event()
        shown.clear()

        def show(text: str) -> None:
            shown.append(text)
            if len(shown) == 3:
                ended.set()

        answer = over_grpc(stream=True, max_tokens=LENGTH, on_text=show, ended=ended)
        return answer if answer.is_stopped else None

    answer = ended_on_the_server(alone, interrupted)
    assert 3 <= answer.responses < LENGTH
    begun = "".join(shown[:3])  # on a busy machine more than three tokens
    assert answer.text.startswith(begun) and over_grpc(max_tokens=LENGTH).text.startswith(begun)


def test_an_answer_ends_after_a_time(over_grpc: Asked, alone: World) -> None:
    def answer() -> Answer | None:
        found = over_grpc(stream=True, max_tokens=LENGTH, stop_after_s=0.1)
        return found if found.is_stopped else None

    assert ended_on_the_server(alone, answer).responses < LENGTH


def test_an_ensemble_cannot_be_ended_over_http(endpoint: Endpoint, alone: World) -> None:
    with pytest.raises(InvalidRequest, match="cannot end an answer of 'ensemble'"):
        Asked(endpoint, "ensemble", "http")(stop_after_s=0.1)
    bls = Asked(endpoint, "tensorrt_llm_bls", "http")

    def answer() -> Answer | None:
        found = bls(stream=True, stop_after_s=0.05, max_tokens=LENGTH)
        return found if found.is_stopped else None

    assert ended_on_the_server(alone, answer)


# The command -------------------------------------------------------------------------------------


def test_one_run_and_one_prompt_need_no_more_words(ask_run: AskRun) -> None:
    plain = ask_run(PROMPT, "--max-tokens", "4", "--no-stream")
    assert plain.exit_code == 0 and f"ms): {PROMPT}" in plain.output
    streamed = ask_run(PROMPT, "--max-tokens", "4")
    assert streamed.exit_code == 0 and "first text after" in streamed.output
    assert ask_run("latest").exit_code == 2


def test_ctrl_c_ends_the_answer_on_the_server_and_shows_what_came(run: RunPaths, alone: World) -> None:
    words = (PROMPT, "--max-tokens", str(LENGTH), "--end-id", "-1", "--runs", str(run.folder.parent))
    wait_idle(alone)
    before = steps(alone)
    with subprocess.Popen(
        [sys.executable, "-m", "trtllm_hpc", "client", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as asking:
        assert asking.stdout is not None
        began = asking.stdout.read(3)
        asking.send_signal(signal.SIGINT)
        rest, told = asking.communicate(timeout=60)
    assert asking.returncode == ExitCode.INTERRUPTED and began + rest
    assert "stopped early" in told and "Traceback" not in told
    wait_until(lambda: steps(alone) > before)
    wait_idle(alone)
    assert steps(alone) - before < LENGTH


def test_many_prompts_are_answered_in_their_order(run: RunPaths, ask_run: AskRun) -> None:
    prompts = [f"Number {number} is" for number in range(12)]
    (run.folder / "prompts.txt").write_text("\n".join(prompts))
    file, short = str(run.folder / "prompts.txt"), ("--json", "--max-tokens", "5", "--exclude-input")
    answer = ask_run("--file", file, "--json", "--max-tokens", "5", "--exclude-input")
    assert answer.exit_code == 0, answer.output
    records = [documented("client", line) for line in answer.output.splitlines()]
    assert [record["prompt"] for record in records] == prompts
    one_by_one = ask_run("latest", *prompts, *short)
    texts = [json.loads(line)["answers"][0]["text"] for line in one_by_one.output.splitlines()]
    assert texts == [record["answers"][0]["text"] for record in records]


def test_a_word_that_is_no_run_is_not_taken_for_a_prompt(ask_run: AskRun) -> None:
    refused = ask_run("demmo", "What is it?")
    assert refused.exit_code != 0 and "demmo" in str(refused.exception)
