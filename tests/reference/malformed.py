"""Requests that make no sense, each with the words that the refusal must contain."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from .clients import ask, token_inputs
from .oracle import MAX_SEQ_LEN
from .servers import World

LARGEST = 2**31 - 1
NAN, INFINITY = float("nan"), float("inf")
ABSENT: Any = None
"""Stands for a required input that is not sent."""


PROMPT = [1, 50, 60, 70, 80]
SOUND = token_inputs(PROMPT, 4)

TENSORS: list[tuple[str, dict[str, Any]]] = [
    # Shapes, types and missing inputs: Triton's own words.
    ("batch size does not match", {"input_ids": PROMPT}),
    ("unexpected shape for input 'input_ids'", {"input_ids": [[PROMPT]]}),
    ("unexpected shape for input 'input_lengths'", {"input_lengths": [[5, 5]]}),
    ("batch size does not match", {"input_lengths": [[5], [5]]}),
    (
        "batch-size must be <= 8",
        {"input_ids": [PROMPT] * 9, "input_lengths": [[5]] * 9, "request_output_len": [[4]] * 9},
    ),
    ("byte size mismatch", dict.fromkeys(SOUND, np.empty((0, 1), dtype=np.int32))),
    ("unexpected shape for input 'bad_words_list'", {"bad_words_list": [[[9], [9], [9]]]}),
    ("unexpected shape for input 'stop_words_list'", {"stop_words_list": [[9, 10]]}),
    ("data-type is 'INT64'", {"input_ids": np.array([PROMPT])}),
    ("data-type is 'FP32'", {"input_ids": np.array([PROMPT], dtype=np.float32)}),
    ("data-type is 'FP64'", {"temperature": np.array([[0.5]])}),
    ("data-type is 'BYTES'", {"temperature": np.array([[b"hot"]], dtype=np.object_)}),
    ("data-type is 'INT32'", {"streaming": np.array([[1]], dtype=np.int32)}),
    ("input_ids is missing", {"input_ids": ABSENT}),
    ("request_output_len (max_tokens) is missing", {"request_output_len": ABSENT}),
    ("missing required input(s) ['input_lengths','request_output_len']", dict.fromkeys(SOUND, ABSENT)),
    ("unexpected inference input 'temprature'", {"temprature": np.array([[1]], dtype=np.float32)}),
    # Prompts and lengths.
    ("The prompt is empty", {"input_ids": [[]], "input_lengths": 0}),
    ("input_ids holds 0 tokens", {"input_ids": [[]]}),
    ("input_lengths is -1", {"input_lengths": -1}),
    ("input_lengths is 6", {"input_lengths": 6}),
    ("input_ids holds -7", {"input_ids": [[1, -7]], "input_lengths": 2}),
    ("max_input_len 96", {"input_ids": [[5] * 97], "input_lengths": 97}),
    (f"max_seq_len {MAX_SEQ_LEN}", {"request_output_len": MAX_SEQ_LEN - 4}),
    (f"max_seq_len {MAX_SEQ_LEN}", {"request_output_len": LARGEST}),
    # How tokens are chosen.
    ("temperature is inf", {"temperature": INFINITY}),
    ("runtime_top_p is nan", {"runtime_top_p": NAN}),
    ("frequency_penalty asks for", {"frequency_penalty": NAN}),
    ("beam_width asks for beam search", {"beam_width": -3}),
    ("beam_width asks for beam search", {"beam_width": LARGEST}),
    ("return_context_logits asks for logits", {"return_context_logits": True}),
    ("num_return_sequences asks for several answers", {"num_return_sequences": 2}),
    # Words, biases, adapters.
    ("bad_words_list asks for bad words", {"bad_words_list": [[[9, 10, 11], [2, 3, -1]]]}),
    ("second row of stop_words_list", {"stop_words_list": [[[9, 10, 11], [0, 1, -1]]]}),
    ("stop_words_list holds -9", {"stop_words_list": [[[-9, 10], [2, -1]]]}),
    ("asks for speculative decoding", {"draft_input_ids": [[5, 6]]}),
    ("lora_task_id asks for LoRA adapters", {"lora_task_id": 78}),
    ("stop=true needs a request id", {"stop": True}),
]
"""What the refusal says, and the inputs of ``tensorrt_llm`` that differ from ``SOUND``.

``test_requests`` holds the others that this backend refuses.
"""

TEXTS: list[tuple[str, bytes]] = [
    ("failed to parse the request JSON", b"no JSON"),
    ("The document is empty", b""),
    ("non-object", b"[1, 2]"),
    ("Missing a closing quotation mark", b'{"text_input": "x", "max_to'),
    ("surrogate", b'{"text_input": "\\ud800", "max_tokens": 3}'),
    ("text_input is not valid UTF-8", b'{"text_input": "\xff\xfe", "max_tokens": 3}'),
    ("stop_words is not valid UTF-8", b'{"text_input": "x", "max_tokens": 3, "stop_words": ["\xc3("]}'),
    ("Unable to parse", b'{"text_input": 5, "max_tokens": 3}'),
    ("Unable to parse", b'{"text_input": "x", "max_tokens": "ten"}'),
    ("Unable to parse", b'{"text_input": "x", "max_tokens": 2.5}'),
    ("Unable to parse", b'{"text_input": "x", "max_tokens": 3, "random_seed": -1}'),
    ("Shape does not match", b'{"text_input": "x", "max_tokens": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
    ("missing required input(s) ['text_input']", b'{"max_tokens": 3}'),
    ("missing required input(s) ['max_tokens']", b'{"text_input": "x"}'),
    ("batch size does not match", b'{"text_input": ["x", "y"], "max_tokens": 3}'),
    ("byte size mismatch", b'{"text_input": "x", "max_tokens": []}'),
    ("request parameter is not valid UTF-8", b'{"text_input": "x", "max_tokens": 3, "\xff": 1}'),
    ("request parameter is not valid UTF-8", b'{"text_input": "x", "max_tokens": 3, "note": "\xc3("}'),
    ("parameter 'extra' has invalid type", b'{"text_input": "x", "max_tokens": 3, "extra": {"a": 1}}'),
    ("temperature is nan", b'{"text_input": "x", "max_tokens": 3, "temperature": NaN}'),
    ("temperature is -0.7", b'{"text_input": "x", "max_tokens": 3, "temperature": -0.7}'),
    ("runtime_top_k is -1", b'{"text_input": "x", "max_tokens": 3, "top_k": -1}'),
    ("end_id is 512", b'{"text_input": "x", "max_tokens": 3, "end_id": 512}'),
    ("max_seq_len", b'{"text_input": "x", "max_tokens": 4000}'),
    (
        "decoder_text_input (DECODER_QUERY)",
        b'{"text_input": "x", "max_tokens": 3, "decoder_text_input": "y"}',
    ),
    ("asks for statistics", b'{"text_input": "x", "max_tokens": 3, "return_kv_cache_reuse_stats": true}'),
    ("beam_width asks for", b'{"text_input": "x", "max_tokens": 3, "beam_width": 99}'),
    ("request_output_len is -1", b'{"text_input": "x", "max_tokens": -1}'),
    ("asks for a bias of tokens", b'{"text_input": "x", "max_tokens": 3, "embedding_bias_words": ["a"]}'),
    ("max_input_len 96", json.dumps({"text_input": "word " * 1000, "max_tokens": 3}).encode()),
]
"""What the refusal says, and a body for the generate endpoint of a model that takes text."""


def refused_tensors(world: World, expected: str, change: dict[str, Any]) -> None:
    inputs = {name: value for name, value in {**SOUND, **change}.items() if value is not ABSENT}
    answers = ask(world, "tensorrt_llm", inputs)
    assert [type(answer) for answer in answers] == [InferenceServerException], f"{change}: {answers}"
    assert expected in str(answers[0]), f"{change}: {answers[0]}"


def refused_text(world: World, expected: str, body: bytes, model: str) -> None:
    """Send bytes to a generate endpoint."""
    url = world.url(f"models/{model}/generate")
    with pytest.raises(urllib.error.HTTPError) as refusal, urllib.request.urlopen(url, body, timeout=60):
        pass
    with refusal.value as error:
        assert error.code in (400, 500), f"{body[:200]!r}: {error.code}"
        assert expected in json.load(error)["error"], body[:200]
