"""The client on real servers of the reference backend: options, early ends, many streams, adapters."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.schemas.check import documented
from trtllm_hpc.cli.client import command
from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.client.connect import Address
from trtllm_hpc.client.lora import read_adapter
from trtllm_hpc.client.request import Answer
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.errors import ExitCode, InvalidRequest, RequestFailed
from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Endpoint

from .clients import steps, wait_idle, wait_until
from .conftest import AskRun
from .servers import MAX_BATCH_SIZE, World

pytestmark = pytest.mark.triton

PROMPT = "What is machine learning?"
TEXT_MODELS = ("ensemble", "tensorrt_llm_bls")
LOGITS_SHAPES = {"context_logits": (1, 3, 512), "generation_logits": (1, 1, 3, 512)}
LENGTH = 400
"""Tokens of an answer that is ended early."""


class Asked:
    """One model, asked with options; answers have eight tokens and no prompt unless an option says so."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint, self._model = endpoint, model

    def __call__(
        self,
        *,
        stream: bool = False,
        on_text: Callable[[str], object] | None = None,
        ended: asyncio.Event | None = None,
        **options: Any,
    ) -> Answer:
        async def ask() -> Answer:
            async with AsyncClient(self._endpoint, self._model) as client:
                request = client.request(PROMPT, {"max_tokens": 8, "end_id": -1, **options})
                return await client.ask(replace(request, stream=stream), on_text, ended)

        return asyncio.run(ask())


@pytest.fixture(params=TEXT_MODELS)
def ask(request: pytest.FixtureRequest, endpoint: Endpoint) -> Asked:
    return Asked(endpoint, request.param)


def test_options_have_their_effect(ask: Asked, endpoint: Endpoint) -> None:
    greedy = ask(log_probs=True)
    assert greedy.log_probs is not None and len(greedy.log_probs) == 8
    sampled: dict[str, Any] = {"temperature": 5.0, "top_k": 50, "top_p": 0.9, "seed": 2**63 + 1}
    again = ask(**sampled).text
    assert Asked(endpoint, "ensemble")(**sampled).text == again != greedy.text
    assert len(ask(max_tokens=3, min_tokens=3, log_probs=True).log_probs or ()) == 3
    assert ask(exclude_input=False).text == PROMPT + greedy.text
    assert ask(max_tokens=40, repetition_penalty=5.0).text != ask(max_tokens=40).text
    with pytest.raises(RequestFailed, match="presence_penalty asks for"):
        ask(presence_penalty=5.0)


def test_an_answer_ends_after_a_stop_word(ask: Asked) -> None:
    texts = ["", *(ask(max_tokens=count).text for count in range(1, 9))]
    tokens = [after.removeprefix(before) for before, after in pairwise(texts)]
    word = next(token for token in tokens if token.isascii() and token.isalnum())
    assert len(ask(stop_words=[word]).text) < len(texts[-1])


def test_a_stream_says_what_the_whole_answer_says(ask: Asked) -> None:
    for _ in range(5):
        shown: list[str] = []
        answer = ask(stream=True, on_text=shown.append, max_tokens=12)
        if len(shown) > 2:
            break  # on a busy machine a part may have several tokens
    assert len(shown) > 2
    assert "".join(shown) == answer.text == ask(max_tokens=12).text
    assert answer.first_text_s is not None and answer.first_text_s < answer.latency_s


def test_token_ids_are_asked_and_answered(endpoint: Endpoint, tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode(PROMPT)
    with Client(endpoint, "tensorrt_llm") as core, Client(endpoint, "ensemble") as ensemble:
        answer = core.generate(ids, max_tokens=8, end_id=-1)
        assert len(answer.token_ids[0]) == answer.output_tokens == 8
        text = ensemble.generate(PROMPT, max_tokens=8, end_id=-1).text
        assert tokenizer.decode(answer.token_ids[0]) == text
        with pytest.raises(InvalidRequest, match="accepts token IDs, not texts"):
            core.generate(PROMPT)
        with pytest.raises(InvalidRequest, match="--stop-words as token IDs"):
            core.generate(ids, stop_words=["the"])


# Early ends ----------------------------------------------------------------------------------------


def ended_on_the_server(alone: World, answer: Callable[[], Answer]) -> Answer:
    """An answer that its client has ended, and for which the engine then made fewer steps than tokens.

    On a fast machine an answer may be over before, so there are several attempts.
    """
    for _ in range(10):
        wait_idle(alone)
        before = steps(alone)
        found = answer()
        wait_until(lambda before=before: steps(alone) > before)  # type: ignore[misc]
        wait_idle(alone)
        if found.is_stopped and steps(alone) - before < LENGTH:
            return found
    raise AssertionError("no answer was ended before it was over")


def test_an_answer_that_is_interrupted_is_ended_on_the_server(ask: Asked, alone: World) -> None:
    shown: list[str] = []

    def interrupted() -> Answer:
        ended = asyncio.Event()
        shown.clear()

        def show(text: str) -> None:
            shown.append(text)
            if len(shown) == 3:
                ended.set()

        return ask(stream=True, max_tokens=LENGTH, on_text=show, ended=ended)

    answer = ended_on_the_server(alone, interrupted)
    assert 3 <= answer.responses < LENGTH
    begun = "".join(shown[:3])  # on a busy machine more than three tokens
    assert answer.text.startswith(begun) and ask(max_tokens=LENGTH).text.startswith(begun)


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


STREAMS = {"ensemble": 200, "tensorrt_llm_bls": 40}
"""At once. BLS answers one at a time; Triton 2.51 takes a stub for dead that waits long for a processor."""


@pytest.mark.parametrize("model", STREAMS)
def test_no_stream_is_lost_and_none_that_is_left_goes_on(
    endpoint: Endpoint, alone: World, model: str
) -> None:
    streams, options = STREAMS[model], {"end_id": -1, "exclude_input": True}

    async def read(client: AsyncClient, number: int, parts: int | None) -> str:
        """The text of a stream; one with a number of parts is left after them."""
        count, text = (8, "") if parts is None else (LENGTH, "")
        stream = client.stream(f"Number {number % 10} is", max_tokens=count, **options)
        async with aclosing(stream):
            async for part in stream:
                text += part
                parts = None if parts is None else parts - 1
                if parts == 0:
                    break
        return text

    async def many() -> tuple[list[str], list[str]]:
        async with AsyncClient(endpoint, model) as client:
            whole = await asyncio.gather(*(read(client, number, None) for number in range(streams)))
            prompts = [f"Number {number} is" for number in range(10)]
            one_by_one = await client.batch(prompts, concurrency=1, max_tokens=8, **options)
            half = [read(client, number, 3 if number % 2 else None) for number in range(streams)]
            await asyncio.to_thread(wait_idle, alone)
            before = steps(alone)
            found = await asyncio.gather(*half)
            await asyncio.to_thread(wait_until, lambda: steps(alone) > before)
            await asyncio.to_thread(wait_idle, alone)
            assert found[::2] == whole[::2]
            # So many steps of eight requests each make all tokens that were asked for.
            assert steps(alone) - before < streams / 2 * LENGTH / MAX_BATCH_SIZE / 2
            return list(whole), [answer.text for answer in one_by_one]

    whole, one_by_one = asyncio.run(many())
    # Without letters of several tokens, which a stream of the ensemble does not put together.
    plain = [re.sub(r"[^ -~]", "", text) for text in (*whole, *one_by_one)]
    assert plain[:streams] == [plain[streams + number % 10] for number in range(streams)]


# What TensorRT-LLM has and the reference backend has not ---------------------------------------------


def test_beams_and_bad_words_reach_the_model(endpoint: Endpoint) -> None:
    with Client(endpoint, "recorded") as client:
        answer = client.generate("A", beam_width=3, bad_words=["no", "not"], return_sequences=3)
    assert answer.texts == tuple(f"A without no, not {beam}" for beam in range(3))


def test_logits_come_with_an_answer_that_asks_for_them(endpoint: Endpoint) -> None:
    with Client(endpoint, "recorded") as client:
        answer = client.generate("A", context_logits=True, generation_logits=True)
        assert {name: array.shape for name, array in answer.logits.items()} == LOGITS_SHAPES
        assert answer.logits["context_logits"].dtype == np.float32
        assert client.generate("A").logits == {}
        with pytest.raises(InvalidRequest, match="need an answer that is not streamed"):
            list(client.stream("A", context_logits=True))
    with Client(endpoint, "ensemble") as client, pytest.raises(RequestFailed, match="asks for logits"):
        client.generate("A", context_logits=True)


def test_logits_are_written_into_one_file(ask_run: AskRun, run: RunPaths) -> None:
    words = (PROMPT, "--model", "recorded", "--save-logits", str(run.logits))
    asked = ask_run(*words, "--generation-logits", "--context-logits", "--save")
    assert asked.exit_code == 0, asked.output
    assert "context_logits: 1 x 3 x 512\ngeneration_logits: 1 x 1 x 3 x 512\n" in asked.output
    with np.load(run.logits) as saved:
        assert {name: saved[name].shape for name in saved.files} == LOGITS_SHAPES
    record = documented("client", run.answer.read_text(encoding="utf-8"))
    assert record["answers"][0]["logits"] == {name: list(shape) for name, shape in LOGITS_SHAPES.items()}
    assert ask_run(*words).exit_code == ExitCode.USAGE
    assert ask_run("latest", PROMPT, PROMPT, "--context-logits").exit_code == ExitCode.USAGE


def write_adapter(folder: Path, seed: int) -> str:
    folder.mkdir()
    values = np.random.default_rng(seed).normal(0, 2, (1, 2, 64)).astype(np.float16)
    np.save(folder / "model.lora_weights.npy", values)
    np.save(folder / "model.lora_config.npy", np.array([[[1, 0, 2], [1, 1, 2]]], dtype=np.int32))
    return str(folder)


def test_the_seeds_six_prompts_with_two_adapters(ask_run: AskRun, tmp_path: Path) -> None:
    one, two = write_adapter(tmp_path / "one", 1), write_adapter(tmp_path / "two", 2)
    given = [word for folder in ["", one, two] * 2 for word in ("--lora-dir", folder)]
    answered = ask_run(*given, "--json", "--model", "recorded", "--no-stream", "latest", *[PROMPT] * 6)
    assert answered.exit_code == 0, answered.output
    found = [json.loads(line)["answers"][0]["text"] for line in answered.output.splitlines()]
    assert found[:3] == found[3:] and len(set(found)) == 3


def test_the_command_sends_an_adapter_by_its_number_beams_and_bad_words(
    ask_run: AskRun, tmp_path: Path
) -> None:
    words = (PROMPT, "--json", "--model", "recorded", "--lora-task-id", "1")
    searched = (*words, "--beam-width", "2", "--bad-words", "no", "--bad-words", "not")
    sent = ask_run(*searched, "--lora-dir", write_adapter(tmp_path / "one", 1))
    texts = json.loads(sent.output)["answers"][0]["texts"]
    assert [text.partition(" by ")[2].split(" ", 1)[1] for text in texts] == [
        "without no, not 0",
        "without no, not 1",
    ]
    named = json.loads(ask_run(*words).output)["answers"][0]["texts"]
    assert named == [texts[0].replace(" without no, not", "")]


def test_an_evicted_adapter_is_sent_again(endpoint: Endpoint, tmp_path: Path) -> None:
    folders = [Path(write_adapter(tmp_path / str(number), number)) for number in range(9)]
    adapters = [read_adapter(folder) for folder in folders]
    with Client(endpoint, "recorded") as client:
        first = [client.generate(PROMPT, adapter=it).text for it in adapters]
        again = [client.generate(PROMPT, adapter=it).text for it in adapters]
        assert first == again and len(set(first)) == 9
        # The server knows the last adapter by its number.
        assert client.generate(PROMPT, lora_task_id=adapters[-1].task_id).text == first[-1]


# The command -------------------------------------------------------------------------------------


def test_one_run_and_one_prompt_need_no_more_words(ask_run: AskRun) -> None:
    plain = ask_run(PROMPT, "--max-tokens", "4", "--no-stream")
    assert plain.exit_code == 0 and f"ms): {PROMPT}" in plain.output
    streamed = ask_run(PROMPT, "--max-tokens", "4")
    assert streamed.exit_code == 0 and "first text after" in streamed.output
    assert ask_run("latest").exit_code == 2
    refused = ask_run("demmo", "What is it?")
    assert refused.exit_code != 0 and "demmo" in str(refused.exception)


def test_many_prompts_are_answered_in_their_order(run: RunPaths, ask_run: AskRun) -> None:
    prompts = [f"Number {number} is" for number in range(12)]
    (run.folder / "prompts.txt").write_text("\n".join(prompts))
    answered = ask_run("--file", str(run.folder / "prompts.txt"), "--json", "--max-tokens", "5")
    assert answered.exit_code == 0, answered.output
    records = [documented("client", line) for line in answered.output.splitlines()]
    assert [record["prompt"] for record in records] == prompts
    assert all(record["answers"][0]["text"].startswith(record["prompt"]) for record in records)


def test_another_server_is_asked_by_its_url(endpoint: Endpoint) -> None:
    url = f"grpc://127.0.0.1:{endpoint.grpc_port}"
    said = CliRunner().invoke(command, ["--url", url, PROMPT, "--max-tokens", "4", "--json"])
    record = json.loads(said.stdout)
    assert record["model"] == "ensemble" and record["host"] == url
    with Client(Address(url), "tensorrt_llm_bls") as client:
        assert "".join(client.stream(PROMPT, max_tokens=4, end_id=-1))
    with pytest.raises(RequestFailed, match="no_such"):
        Client(Address(url), "no_such")


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://127.0.0.1:1", ExitCode.UNREACHABLE),
        ("grpc://127.0.0.1:1", ExitCode.UNREACHABLE),
        ("http://127.0.0.1:1/v1", ExitCode.UNREACHABLE),
        ("127.0.0.1:8000", ExitCode.USAGE),
        ("ftp://127.0.0.1", ExitCode.USAGE),
        ("http://", ExitCode.USAGE),
    ],
)
def test_servers_that_are_not_there_have_their_own_exit_code(url: str, code: ExitCode) -> None:
    said = CliRunner().invoke(command, ["--url", url, PROMPT, "--model", "x"])
    assert getattr(said.exception, "exit_code", None) == code, said.exception
