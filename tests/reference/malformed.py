"""Requests that make no sense, each with the words that the refusal must contain."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from .servers import World

LARGEST = 2**31 - 1
NAN, INFINITY = float("nan"), float("inf")
ABSENT: Any = None
"""Stands for a required input that is not sent."""


def integers(*values: Any) -> Any:
    return np.array([values], dtype=np.int32)


def numbers(*values: float) -> Any:
    return np.array([values], dtype=np.float32)


def seeds(*values: int) -> Any:
    return np.array([values], dtype=np.uint64)


def switches(*values: bool) -> Any:
    return np.array([values], dtype=np.bool_)


def halves(*shape: int) -> Any:
    return np.zeros((1, *shape), dtype=np.float16)


def words(tokens: list[int], ends: list[int]) -> Any:
    return integers(tokens, ends)


PROMPT = [1, 50, 60, 70, 80]
SOUND = {"input_ids": integers(*PROMPT), "input_lengths": integers(5), "request_output_len": integers(4)}

TENSORS: list[tuple[str, dict[str, Any]]] = [
    # Shapes, types and missing inputs: Triton's own words.
    ("batch size does not match", {"input_ids": np.array(PROMPT, dtype=np.int32)}),
    ("unexpected shape for input 'input_ids'", {"input_ids": integers(PROMPT)}),
    ("unexpected shape for input 'input_lengths'", {"input_lengths": integers(5, 5)}),
    ("batch size does not match", {"input_lengths": np.array([[5], [5]], dtype=np.int32)}),
    ("batch-size must be <= 8", {name: np.repeat(value, 9, axis=0) for name, value in SOUND.items()}),
    ("byte size mismatch", {name: value[:0] for name, value in SOUND.items()}),
    ("unexpected shape for input 'bad_words_list'", {"bad_words_list": integers([9], [9], [9])}),
    ("unexpected shape for input 'stop_words_list'", {"stop_words_list": integers(9, 10)}),
    ("data-type is 'INT64'", {"input_ids": np.array([PROMPT])}),
    ("data-type is 'FP32'", {"input_ids": numbers(*PROMPT)}),
    ("data-type is 'FP64'", {"temperature": np.array([[0.5]])}),
    ("data-type is 'BYTES'", {"temperature": np.array([[b"hot"]], dtype=np.object_)}),
    ("data-type is 'INT32'", {"streaming": integers(1)}),
    ("missing required input(s) ['input_ids']", {"input_ids": ABSENT}),
    ("missing required input(s) ['input_lengths']", {"input_lengths": ABSENT}),
    ("missing required input(s) ['request_output_len']", {"request_output_len": ABSENT}),
    ("unexpected inference input 'temprature'", {"temprature": numbers(1)}),
    # Prompts and lengths.
    ("The prompt is empty", {"input_ids": np.zeros((1, 0), dtype=np.int32), "input_lengths": integers(0)}),
    ("The prompt is empty", {"input_lengths": integers(0)}),
    ("input_ids holds 0 tokens", {"input_ids": np.zeros((1, 0), dtype=np.int32)}),
    ("input_lengths is -1", {"input_lengths": integers(-1)}),
    ("input_lengths is 6", {"input_lengths": integers(6)}),
    ("input_ids holds 512", {"input_ids": integers(1, 512), "input_lengths": integers(2)}),
    ("input_ids holds -7", {"input_ids": integers(1, -7), "input_lengths": integers(2)}),
    ("max_input_len 96", {"input_ids": integers(*[5] * 97), "input_lengths": integers(97)}),
    ("must be at least 1", {"request_output_len": integers(0)}),
    ("request_output_len (max_tokens) is -3", {"request_output_len": integers(-3)}),
    ("max_seq_len 128", {"request_output_len": integers(124)}),
    ("max_seq_len 128", {"request_output_len": integers(LARGEST)}),
    # How tokens are chosen.
    ("temperature is nan", {"temperature": numbers(NAN)}),
    ("temperature is inf", {"temperature": numbers(INFINITY)}),
    ("temperature is -0.5", {"temperature": numbers(-0.5)}),
    ("runtime_top_p is 1.5", {"runtime_top_p": numbers(1.5)}),
    ("runtime_top_p is nan", {"runtime_top_p": numbers(NAN)}),
    ("runtime_top_k is -1", {"runtime_top_k": integers(-1)}),
    ("repetition_penalty is 0", {"repetition_penalty": numbers(0)}),
    ("presence_penalty is inf", {"presence_penalty": numbers(INFINITY)}),
    ("frequency_penalty is nan", {"frequency_penalty": numbers(NAN)}),
    ("min_length is -1", {"min_length": integers(-1)}),
    ("beam_width is 0", {"beam_width": integers(0)}),
    ("beam_width is -3", {"beam_width": integers(-3)}),
    ("max_beam_width 4", {"beam_width": integers(5)}),
    ("max_beam_width 4", {"beam_width": integers(LARGEST)}),
    ("num_return_sequences is -1", {"num_return_sequences": integers(-1)}),
    (f"num_return_sequences is {LARGEST}", {"num_return_sequences": integers(LARGEST)}),
    ("num_return_sequences is 3", {"num_return_sequences": integers(3), "beam_width": integers(2)}),
    ("streaming=true cannot", {"streaming": switches(True), "beam_width": integers(2)}),
    ("end_id is 600", {"end_id": integers(600)}),
    ("pad_id is 512", {"pad_id": integers(512)}),
    # Words, biases, adapters.
    ("second row of bad_words_list", {"bad_words_list": words([9, 10], [3, -1])}),
    ("second row of bad_words_list", {"bad_words_list": words([9, 10, 11], [2, 1, -1])}),
    ("second row of stop_words_list", {"stop_words_list": words([9, 10, 11], [0, 1, -1])}),
    ("second row of stop_words_list", {"stop_words_list": words([9, 10, 11], [-1, 1, -1])}),
    ("bad_words_list holds 999", {"bad_words_list": words([9, 999], [1, 2])}),
    ("stop_words_list holds -9", {"stop_words_list": words([-9, 10], [2, -1])}),
    ("embedding_bias holds 600", {"embedding_bias": numbers(*[0] * 600)}),
    ("embedding_bias holds a NaN", {"embedding_bias": numbers(*[NAN] * 512)}),
    ("lora_weights and lora_config need", {"lora_weights": halves(1, 4)}),
    ("belong together", {"lora_task_id": seeds(77), "lora_weights": halves(1, 4)}),
    ("lora_task_id", {"lora_task_id": seeds(78)}),
    (
        "rank 99",
        {"lora_task_id": seeds(79), "lora_weights": halves(1, 4), "lora_config": integers([0, 0, 99])},
    ),
    ("stop=true needs a request id", {"stop": switches(True)}),
]
"""What the refusal says, and the inputs of ``tensorrt_llm`` that differ from ``SOUND``."""

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
    ("request parameters: temprature", b'{"text_input": "x", "max_tokens": 3, "temprature": 1}'),
    ("parameter 'extra' has invalid type", b'{"text_input": "x", "max_tokens": 3, "extra": {"a": 1}}'),
    ("temperature is nan", b'{"text_input": "x", "max_tokens": 3, "temperature": NaN}'),
    ("beam_width is 99", b'{"text_input": "x", "max_tokens": 3, "beam_width": 99}'),
    ("max_tokens) is -1", b'{"text_input": "x", "max_tokens": -1}'),
    ("one weight for each word", b'{"text_input": "x", "max_tokens": 3, "embedding_bias_words": ["a"]}'),
    ("max_input_len 96", json.dumps({"text_input": "word " * 1000, "max_tokens": 3}).encode()),
]
"""What the refusal says, and a body for the generate endpoint of a model that takes text."""


def refused_tensors(world: World, expected: str, change: dict[str, Any]) -> None:
    """Send tensors as they are, without the client's own checks."""
    inputs = []
    for name, array in {**SOUND, **change}.items():
        if array is not ABSENT:
            inputs.append(triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array)
    answers: list[Any] = []
    with triton.InferenceServerClient(f"127.0.0.1:{world.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.append(error or result), stream_timeout=60)
        client.async_stream_infer("tensorrt_llm", inputs)
        client.stop_stream()
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
