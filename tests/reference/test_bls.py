"""The models that take text: ``tensorrt_llm_bls`` and the ensemble, on real servers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from trtllm_hpc.gateway.tokenizer import ModelTokenizer

from .clients import ACCUMULATES, LONG, are_of_tokens, ends_when_left
from .oracle import Oracle
from .servers import World

pytestmark = pytest.mark.triton

TEXT_MODELS = tuple(ACCUMULATES)
PROMPT = "What is machine learning?"


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize(
    "prompt", [PROMPT, "Où est passé l'été? Über Nacht, 你好 мир 🙂", "  two\nlines\t", "x"]
)
def test_texts_are_those_that_transformers_makes(
    world: World, model: str, prompt: str, tokenizer: ModelTokenizer, oracle: Oracle
) -> None:
    words = {"bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2}
    status, answer = world.generate({"text_input": prompt, "max_tokens": 20, **words}, model)
    tokens = tokenizer.encode(prompt)
    assert (status, answer["text_output"]) == (200, tokenizer.decode(tokens + oracle.greedy(tokens, 20, 2)))


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
def test_stop_words_are_text(world: World, model: str, tokenizer: ModelTokenizer, oracle: Oracle) -> None:
    new = oracle.greedy(tokenizer.encode(PROMPT), 12)
    word = next(
        text
        for token in new
        if (text := tokenizer.decode([token])).isalnum()
        and tokenizer.encode(text, add_special_tokens=False) == [token]
    )
    [stop] = tokenizer.encode(word, add_special_tokens=False)
    body = {"text_input": PROMPT, "max_tokens": 12, "end_id": -1, "exclude_input_in_output": True}
    text = world.generate({**body, "stop_words": [word, "never"]}, model)[1]["text_output"]
    assert text == tokenizer.decode(new[: new.index(stop) + 1])


@pytest.mark.parametrize(("model", "accumulates"), ACCUMULATES.items())
def test_each_streamed_text_is_that_of_its_tokens_or_of_all_so_far(
    alone: World, model: str, accumulates: bool, tokenizer: ModelTokenizer, oracle: Oracle
) -> None:
    body = {"text_input": PROMPT, "max_tokens": 8, "stream": True, "end_id": -1}
    events = alone.generate_stream(body, model)
    new = oracle.greedy(tokenizer.encode(PROMPT), 8)
    assert are_of_tokens([event["text_output"] for event in events], new, tokenizer, accumulates=accumulates)


def test_client_of_the_bls_model_that_goes_away_frees_the_place(alone: World) -> None:
    values = {"text_input": PROMPT, "max_tokens": LONG - 20, "stream": True, "end_id": -1}
    assert ends_when_left(alone, "tensorrt_llm_bls", values, LONG - 20)


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize(
    ("sentence", "body"),
    [
        ("failed to parse the request JSON", b"no JSON"),
        ("text_input is not valid UTF-8", b'{"text_input": "\xff\xfe", "max_tokens": 3}'),
        ("stop_words is not valid UTF-8", b'{"text_input": "x", "max_tokens": 3, "stop_words": ["\xc3("]}'),
        ("request parameter is not valid UTF-8", b'{"text_input": "x", "max_tokens": 3, "note": "\xc3("}'),
        ("missing required input(s) ['max_tokens']", b'{"text_input": "x"}'),
        ("holds 2 prompts", b'{"text_input": ["x", "y"], "max_tokens": [3, 3]}'),
        ("temperature is nan", b'{"text_input": "x", "max_tokens": 3, "temperature": NaN}'),
        ("beam_width asks for", b'{"text_input": "x", "max_tokens": 3, "beam_width": 99}'),
        ("max_input_len 96", json.dumps({"text_input": "word " * 1000, "max_tokens": 3}).encode()),
    ],
)
def test_refusals_come_through_and_harm_nobody(world: World, model: str, sentence: str, body: bytes) -> None:
    url = world.url(f"models/{model}/generate")
    with pytest.raises(urllib.error.HTTPError) as refusal, urllib.request.urlopen(url, body, timeout=60):
        pass
    with refusal.value as error:
        assert error.code in (400, 500) and sentence in json.load(error)["error"]
    # The token that begins a text is prompt enough.
    assert world.generate({"text_input": "", "max_tokens": 2}, model)[0] == 200
