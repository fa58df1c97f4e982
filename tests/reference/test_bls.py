"""The models that take text: ``tensorrt_llm_bls`` and the ensemble, on real servers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from trtllm_hpc.gateway.tokenizer import ModelTokenizer

from .clients import ACCUMULATES, are_of_tokens
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


@pytest.mark.parametrize(("model", "accumulates"), ACCUMULATES.items())
def test_each_streamed_text_is_that_of_its_tokens_or_of_all_so_far(
    alone: World, model: str, accumulates: bool, tokenizer: ModelTokenizer, oracle: Oracle
) -> None:
    body = {"text_input": PROMPT, "max_tokens": 8, "stream": True, "end_id": -1}
    events = alone.generate_stream(body, model)
    new = oracle.greedy(tokenizer.encode(PROMPT), 8)
    assert are_of_tokens([event["text_output"] for event in events], new, tokenizer, accumulates=accumulates)


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize(
    ("sentence", "body"),
    [
        ("text_input is not valid UTF-8", b'{"text_input": "\xff\xfe", "max_tokens": 3}'),
        ("stop_words is not valid UTF-8", b'{"text_input": "x", "max_tokens": 3, "stop_words": ["\xc3("]}'),
        ("contains 2 prompts", b'{"text_input": ["x", "y"], "max_tokens": [3, 3]}'),
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
