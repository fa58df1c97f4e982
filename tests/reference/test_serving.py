"""What a client sees of real Triton servers, one rank and two."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from trtllm_hpc.gateway.tokenizer import ModelTokenizer

from .clients import ask_one, token_inputs
from .conftest import Greedy
from .oracle import Oracle
from .servers import World

pytestmark = pytest.mark.triton

END = 2
PROMPTS = (
    "What is machine learning?",
    "The scheduler",
    "Où est passé l'été? Über Nacht, 你好 мир 🙂",
    "x",
    "  two spaces and\na new line\t",
    "Who wrote the letter, and why was it never answered?",
    "0 1 2 3 4",
    "ñ",
)
NEW_TOKENS = 16


def infer(world: World, prompt: list[int], count: int, **values: Any) -> Any:
    return ask_one(world, "tensorrt_llm", token_inputs(prompt, count, end_id=END, **values))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_tokens_over_grpc_equal_transformers(
    world: World, prompt: str, tokenizer: ModelTokenizer, judge: Oracle
) -> None:
    tokens = tokenizer.encode(prompt)
    answer = infer(world, tokens, NEW_TOKENS)
    (whole,) = answer.as_numpy("output_ids")[0].tolist()
    assert whole[: len(tokens)] == tokens
    judge.check_greedy(tokens, whole[len(tokens) :], NEW_TOKENS, END)
    assert answer.as_numpy("sequence_length").tolist() == [[len(whole)]]


@pytest.mark.parametrize(
    ("model", "prompt"),
    [*(("ensemble", prompt) for prompt in PROMPTS), ("tensorrt_llm_bls", PROMPTS[0])],
)
def test_text_over_http_equals_transformers(
    world: World, model: str, prompt: str, tokenizer: ModelTokenizer, greedy_alone: Greedy
) -> None:
    words = {"bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2}
    status, answer = world.generate({"text_input": prompt, "max_tokens": 20, **words}, model)
    tokens = tokenizer.encode(prompt)
    expected = tokenizer.decode(tokens + greedy_alone(world, tokens, 20, END))
    assert (status, answer["text_output"]) == (200, expected)


def test_eight_requests_at_once_each_get_their_own_answer(
    world: World, tokenizer: ModelTokenizer, judge: Oracle, greedy_alone: Greedy
) -> None:
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    alone = [greedy_alone(world, prompt, NEW_TOKENS, END) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as threads:
        over_grpc = threads.map(lambda tokens: infer(world, tokens, NEW_TOKENS), prompts)
        over_http = threads.map(
            lambda text: world.generate({"text_input": text, "max_tokens": NEW_TOKENS}), PROMPTS
        )
        for prompt, known, outputs, (status, answer) in zip(
            prompts, alone, over_grpc, over_http, strict=True
        ):
            (whole,) = outputs.as_numpy("output_ids")[0].tolist()
            assert whole[: len(prompt)] == prompt
            judge.check_greedy(prompt, whole[len(prompt) :], NEW_TOKENS, END)
            assert status == 200
            judge.check_text(answer["text_output"], tokenizer, prompt, known)


def test_input_can_be_excluded(world: World, tokenizer: ModelTokenizer, greedy_alone: Greedy) -> None:
    tokens = tokenizer.encode(PROMPTS[0])
    new = greedy_alone(world, tokens, 5, END)
    outputs = infer(world, tokens, 5, exclude_input_in_output=True)
    assert outputs.as_numpy("output_ids").tolist() == [[new]]
    assert outputs.as_numpy("sequence_length").tolist() == [[5]]
    body = {"text_input": PROMPTS[0], "max_tokens": 5, "exclude_input_in_output": True}
    assert world.generate(body)[1]["text_output"] == tokenizer.decode(new)


def test_generation_ends_at_the_end_token(
    world: World, tokenizer: ModelTokenizer, greedy_alone: Greedy
) -> None:
    tokens = tokenizer.encode(PROMPTS[0])
    end = greedy_alone(world, tokens, 4, None)[3]
    body = {"text_input": PROMPTS[0], "max_tokens": 20, "end_id": end}
    expected = greedy_alone(world, tokens, 20, end)
    assert len(expected) <= 4
    assert world.generate(body)[1]["text_output"] == tokenizer.decode(tokens + expected)


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_prompt_of_ten_megabytes_is_refused_and_harms_nobody(world: World, model: str) -> None:
    """Not among the requests of ``malformed``: the shared memory stays as large as the largest request."""
    with ThreadPoolExecutor(1) as thread:
        refusal = thread.submit(world.generate, {"text_input": "word " * 2_000_000, "max_tokens": 3}, model)
        assert world.generate({"text_input": "x", "max_tokens": 3})[0] == 200
        status, answer = refusal.result()
    assert status == 400
    assert "this engine was built for max_input_len 96" in answer["error"]
    assert world.generate({"text_input": "x", "max_tokens": 3}, model)[0] == 200
