"""The models that take text: ``tensorrt_llm_bls`` and the ensemble, on real servers."""

from __future__ import annotations

import pytest
from tritonclient.utils import InferenceServerException

from trtllm_hpc.gateway.tokenizer import ModelTokenizer

from . import malformed
from .clients import ask, ask_one, ends_when_left, texts
from .conftest import Greedy
from .oracle import LONG, Oracle
from .servers import World
from .visitors import ACCUMULATES, are_of_tokens

pytestmark = pytest.mark.triton

TEXT_MODELS = tuple(ACCUMULATES)
PROMPT = "What is machine learning?"


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_both_models_pass_every_setting_on(world: World, model: str) -> None:
    settings = {
        "top_k": 20,
        "top_p": 0.9,
        "temperature": 1.5,
        "random_seed": 3,
        "repetition_penalty": 1.1,
        "min_length": 2,
        "length_penalty": 0.5,
        "exclude_input_in_output": True,
        "return_log_probs": True,
    }
    body = {"text_input": PROMPT, "max_tokens": 6, "end_id": -1, **settings}
    answers = [world.generate(body, name) for name in (model, "ensemble", model)]
    assert {status for status, _ in answers} == {200}
    for name in ("text_output", "output_log_probs", "cum_log_probs"):
        assert answers[0][1][name] == pytest.approx(answers[1][1][name], abs=1e-4), name
        assert answers[0][1][name] == answers[2][1][name], name
    assert len(answers[0][1]["output_log_probs"]) == 6


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_stop_words_are_text(
    world: World, model: str, tokenizer: ModelTokenizer, greedy_alone: Greedy
) -> None:
    new = greedy_alone(world, tokenizer.encode(PROMPT), 12, None)
    place, word = next(
        (place, text)
        for place, token in enumerate(new)
        if (text := tokenizer.decode([token])).isalnum()
        and tokenizer.encode(text, add_special_tokens=False) == [token]
    )
    body = {"text_input": PROMPT, "max_tokens": 12, "end_id": -1, "exclude_input_in_output": True}
    text = world.generate({**body, "stop_words": [word, "never"]}, model)[1]["text_output"]
    assert text == tokenizer.decode(new[: new.index(new[place]) + 1])


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_several_prompts_come_back_as_one_response_each(
    alone: World, model: str, tokenizer: ModelTokenizer, judge: Oracle, greedy_alone: Greedy
) -> None:
    prompts = [PROMPT, "The scheduler", "x"]
    answers = ask(
        alone,
        model,
        {"text_input": [[text] for text in prompts], "max_tokens": [[5]] * 3, "end_id": [[2]] * 3},
    )
    found = {int(answer.as_numpy("batch_index")[0, 0]): texts(answer)[0] for answer in answers}
    assert sorted(found) == [0, 1, 2]
    for index, text in enumerate(prompts):
        prompt = tokenizer.encode(text)
        judge.check_text(found[index], tokenizer, prompt, greedy_alone(alone, prompt, 5, 2))


@pytest.mark.parametrize(("model", "accumulates"), ACCUMULATES.items())
def test_each_streamed_text_is_that_of_its_tokens_or_of_all_so_far(
    alone: World, model: str, accumulates: bool, tokenizer: ModelTokenizer, greedy_alone: Greedy
) -> None:
    body = {"text_input": PROMPT, "max_tokens": 8, "stream": True, "end_id": -1}
    events = alone.generate_stream(body, model)
    new = greedy_alone(alone, tokenizer.encode(PROMPT), 8, None)
    assert are_of_tokens([event["text_output"] for event in events], new, tokenizer, accumulates=accumulates)


def test_accumulated_texts_of_several_prompts_are_kept_apart(
    alone: World, tokenizer: ModelTokenizer, judge: Oracle, greedy_alone: Greedy
) -> None:
    prompts = [PROMPT, "The scheduler"]
    answers = ask(
        alone,
        "tensorrt_llm_bls",
        {
            "text_input": [[text] for text in prompts],
            "max_tokens": [[5]] * 2,
            "stream": [[True]] * 2,
            "end_id": [[-1]] * 2,
        },
    )
    last = {int(answer.as_numpy("batch_index")[0, 0]): texts(answer)[0] for answer in answers}
    assert sorted(last) == [0, 1]
    for index, text in enumerate(prompts):
        prompt = tokenizer.encode(text)
        known = greedy_alone(alone, prompt, 5, None)
        judge.check_text(last[index], tokenizer, prompt, known, with_prompt=False)


def test_client_of_the_bls_model_that_goes_away_frees_the_place(alone: World) -> None:
    values = {"text_input": PROMPT, "max_tokens": LONG - 20, "stream": True, "end_id": -1}
    assert ends_when_left(alone, "tensorrt_llm_bls", values, LONG - 20)


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize(("sentence", "body"), malformed.TEXTS)
def test_refusals_come_through_and_harm_nobody(world: World, model: str, sentence: str, body: bytes) -> None:
    malformed.refused_text(world, sentence, body, model)
    # The token that begins a text is prompt enough.
    assert world.generate({"text_input": "", "max_tokens": 2}, model)[0] == 200


def test_unknown_input_over_grpc_is_refused_by_name(world: World) -> None:
    with pytest.raises(InferenceServerException, match="lora_weights asks for LoRA"):
        ask_one(world, "tensorrt_llm_bls", {"text_input": "x", "max_tokens": 2, "lora_weights": [[[1.0]]]})
