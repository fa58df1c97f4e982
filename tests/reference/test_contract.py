"""The tensors of ``tensorrt_llm`` on real servers: one rank, decoupled, and two that are not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from . import servers
from .clients import (
    LONG,
    MAX_SEQ_LEN,
    STOP,
    ask,
    ask_one,
    connect,
    ends_when_left,
    metric,
    steps,
    stream,
    tensors,
    token_inputs,
    tokens,
    wait_idle,
    wait_until,
)
from .oracle import Oracle
from .servers import World

pytestmark = pytest.mark.triton

PROMPT = [1, 50, 60, 70, 80]
SAMPLED: dict[str, Any] = {"runtime_top_k": 40, "temperature": 1.5, "random_seed": 11}


def infer(world: World, count: int, **values: Any) -> Any:
    return ask_one(world, "tensorrt_llm", token_inputs(PROMPT, count, **values))


def new_tokens(world: World, count: int, **values: Any) -> list[int]:
    return tokens(infer(world, count, exclude_input_in_output=True, **values))


def test_log_probs_of_drawn_tokens_are_those_of_the_model(world: World, oracle: Oracle) -> None:
    answer = infer(world, 6, return_log_probs=True, temperature=0.5, runtime_top_k=3)
    expected = oracle.log_probs(PROMPT, tokens(answer)[len(PROMPT) :])
    assert answer.as_numpy("output_log_probs")[0, 0] == pytest.approx(expected, abs=1e-4)
    assert answer.as_numpy("cum_log_probs").item() == pytest.approx(sum(expected), abs=1e-4)
    assert {output.name for output in infer(world, 2).get_response().outputs} == {
        "output_ids",
        "sequence_length",
    }


def test_seed_alone_decides_what_is_sampled(world: World) -> None:
    seeds = [11, 12, 13, 11, 14, 11]

    def sampled(seed: int) -> list[int]:
        return new_tokens(world, 12, **{**SAMPLED, "random_seed": seed})

    alone = {seed: sampled(seed) for seed in seeds}
    with ThreadPoolExecutor(len(seeds)) as threads:
        assert list(threads.map(sampled, seeds)) == [alone[seed] for seed in seeds]
    assert len({tuple(found) for found in alone.values()}) == 4


def test_generation_ends_after_a_stop_word_or_the_end_token(world: World, oracle: Oracle) -> None:
    greedy = oracle.greedy(PROMPT, 16)
    assert new_tokens(world, 10, stop_words_list=[[greedy[3:5], [2, -1]]]) == greedy[:5]
    end = greedy[2]
    assert new_tokens(world, 16, end_id=end) == greedy[: greedy.index(end) + 1]
    longer = new_tokens(world, 16, end_id=end, min_length=6)
    assert len(longer) > 6 or end not in longer


def test_32_at_once_are_each_what_transformers_makes(world: World, oracle: Oracle) -> None:
    """Prompts of up to 37 tokens: at 100 transformers' own pass with a cache is 1.3e-4 off that without."""
    prompts = [[1, *range(3 + number, 8 + 2 * number)] for number in range(32)]
    with stream(world) as opened:
        for number, prompt in enumerate(prompts):
            values = token_inputs(prompt, 4 + number % 5, exclude_input_in_output=True, return_log_probs=True)
            opened.send("tensorrt_llm", values, request_id=str(number))
        answers = {int(answer.get_response().id): answer for answer in opened.rest()}
    assert len(answers) == 32
    for number, answer in answers.items():
        prompt, new = prompts[number], tokens(answer)
        assert new == oracle.greedy(prompt, 4 + number % 5)
        log_probs = answer.as_numpy("output_log_probs")[0, 0]
        assert log_probs == pytest.approx(oracle.log_probs(prompt, new), abs=1e-4)


def test_streaming_gives_the_tokens_as_they_are_generated(alone: World, oracle: Oracle) -> None:
    """Each response has all log-probabilities so far."""
    values = token_inputs(PROMPT, 60, streaming=True, return_log_probs=True)
    answers = ask(alone, "tensorrt_llm", values)
    new = [token for answer in answers for token in tokens(answer)]
    assert new == oracle.greedy(PROMPT, 60)
    # A token each, but for those that wait for the sender: how many they are depends on the machine.
    assert len(answers) > 1
    expected, count = oracle.log_probs(PROMPT, new), 0
    for answer in answers:
        count += len(tokens(answer))
        assert answer.as_numpy("output_log_probs")[0, 0] == pytest.approx(expected[:count], abs=1e-3)


def test_stop_request_ends_the_request_of_its_id_and_keeps_the_tokens(world: World, oracle: Oracle) -> None:
    whole = PROMPT + oracle.greedy(PROMPT, LONG)
    wait_idle(world)
    with stream(world) as opened, stream(world) as other:
        before = steps(world)
        opened.send("tensorrt_llm", token_inputs(PROMPT, LONG), request_id="seven")
        # The first token of two is there then.
        wait_until(lambda: steps(world) >= before + 2)
        answer = ask_one(world, "tensorrt_llm", STOP, request_id="seven")
        assert not answer.get_response().outputs
        other.send("tensorrt_llm", STOP, request_id="no such id")
        assert not other.next().get_response().outputs
        stopped = tokens(opened.next())
    assert len(PROMPT) < len(stopped) < len(whole)
    assert stopped == whole[: len(stopped)]
    wait_idle(world)


def test_client_that_goes_away_frees_its_place(world: World) -> None:
    assert ends_when_left(world, "tensorrt_llm", token_inputs(PROMPT, LONG), LONG)


@pytest.mark.parametrize(
    ("sentence", "change"),
    [
        # What Triton checks by the configuration, and what the model reads.
        ("unexpected inference input 'temprature'", {"temprature": np.array([[1]], dtype=np.float32)}),
        (f"max_seq_len {MAX_SEQ_LEN}", {"request_output_len": 2**31 - 1}),
        ("stop=true needs a request id", {"stop": True}),
    ],
)
def test_malformed_request_is_refused_and_harms_nobody(
    alone: World, sentence: str, change: dict[str, Any]
) -> None:
    [refusal] = ask(alone, "tensorrt_llm", {**token_inputs(PROMPT, 4), **change})
    assert isinstance(refusal, InferenceServerException) and sentence in str(refusal)
    assert len(new_tokens(alone, 4)) == 4


@pytest.fixture
def narrow(engines: dict[int, Path], tmp_path: Path) -> Iterator[World]:
    """A server with room for one long request and a queue of one."""
    limits: dict[str, Any] = {"max_queue_size": "1", "max_tokens_in_paged_kv_cache": str(MAX_SEQ_LEN)}
    with servers.serve(tmp_path, engines[1], **limits) as world:
        yield world


@contextmanager
def crowd(narrow: World) -> Iterator[list[list[int]]]:
    """Three clients that send one long request after the other; what they were answered."""
    values, answers, over = token_inputs(PROMPT, LONG), list[list[int]](), threading.Event()

    def ask() -> None:
        while not over.is_set():
            answer = outcome(narrow, values)
            if not isinstance(answer, str):
                answers.append(answer)

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        try:
            yield answers
        finally:
            over.set()
        for each in asking:
            each.result()
    wait_idle(narrow)


def test_requests_wait_for_kv_cache_and_then_the_queue_is_full(narrow: World) -> None:
    with crowd(narrow) as answers:
        wait_until(lambda: metric(narrow, "nv_trt_llm_request_metrics", "waiting") > 0)
        wait_until(lambda: outcome(narrow, token_inputs(PROMPT, 2)) == "StatusCode.UNAVAILABLE")
        text = {"text_input": "x", "max_tokens": 2}
        wait_until(lambda: "Maximum queue size of 1" in narrow.generate(text)[1].get("error", ""))
    assert len(answers) >= 2 and all(answer == answers[0] for answer in answers)
    assert outcome(narrow, token_inputs(PROMPT, 0)) == "StatusCode.INVALID_ARGUMENT"


def outcome(world: World, values: dict[str, Any]) -> list[int] | str:
    """The tokens of a model that is not decoupled, or the status of its refusal: on a stream it has none."""
    with connect(world) as client:
        try:
            return tokens(client.infer("tensorrt_llm", tensors(values)))
        except InferenceServerException as refusal:
            return str(refusal.status())
