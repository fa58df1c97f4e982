from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.engine_folder import EngineInfo
from trtllm_hpc.reference.requests import GREEDY, NO_END, parse

INFO = EngineInfo(
    dtype="float32",
    vocab_size=512,
    tensor_parallel=1,
    world_size=1,
    max_batch_size=8,
    max_input_len=16,
    max_seq_len=24,
)


def inputs(**changes: Any) -> dict[str, np.ndarray[Any, Any]]:
    given = {"input_ids": [[1, 5, 6, 7]], "input_lengths": [4], "request_output_len": [8], **changes}
    return {name: np.array(value) for name, value in given.items()}


def test_plain_request() -> None:
    request = parse(inputs(end_id=[2], pad_id=[2]), INFO)
    assert request.prompt == (1, 5, 6, 7)
    assert (request.max_new_tokens, request.end_id, request.pad_id) == (8, 2, 2)
    assert not request.exclude_input and not request.return_log_probs


def test_without_end_id_nothing_ends_early() -> None:
    assert parse(inputs(), INFO).end_id == NO_END


def test_tokens_beyond_input_lengths_are_padding() -> None:
    assert parse(inputs(input_lengths=[2]), INFO).prompt == (1, 5)


def test_harmless_values_of_every_refused_input_are_taken() -> None:
    everything = {name: [values[0]] for name, values in GREEDY.items()}
    empty = [[[0], [-1]]]
    request = parse(inputs(**everything, random_seed=[7], stop_words_list=empty, bad_words_list=empty), INFO)
    assert request.prompt == (1, 5, 6, 7)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"beam_width": [2]}, "beam_width=2 is not supported"),
        ({"temperature": [0.5]}, "temperature=0.5 is not supported"),
        ({"runtime_top_k": [40]}, "runtime_top_k=40 is not supported"),
        ({"runtime_top_p": [0.5]}, "runtime_top_p=0.5 is not supported"),
        ({"streaming": [True]}, "streaming=True is not supported"),
        ({"stop": [True]}, "stop=True is not supported"),
        ({"repetition_penalty": [1.5]}, "repetition_penalty=1.5 is not supported"),
        ({"num_return_sequences": [2]}, "num_return_sequences=2 is not supported"),
        ({"return_context_logits": [True]}, "return_context_logits=True is not supported"),
        ({"stop_words_list": [[[9, 10], [2, -1]]]}, "stop_words_list is not supported"),
        ({"bad_words_list": [[[9], [1]]]}, "bad_words_list is not supported"),
        ({"input_ids": [[1, 2], [3, 4]], "input_lengths": [2, 2]}, "this one holds 2"),
        ({"input_lengths": [0]}, "prompt is empty"),
        ({"input_lengths": [9]}, "input_lengths is 9, but input_ids holds 4"),
        ({"request_output_len": [0]}, "it must be at least 1"),
        ({"request_output_len": [-5]}, "it must be at least 1"),
        ({"request_output_len": [21]}, "make 25; this engine was built for max_seq_len 24"),
        (
            {"input_ids": [[1] * 17], "input_lengths": [17]},
            "17 tokens; this engine was built for max_input",
        ),
        ({"input_ids": [[1, 5, 512, 7]]}, "input_ids holds 512"),
        ({"input_ids": [[1, -5, 6, 7]]}, "input_ids holds -5"),
        ({"end_id": [512]}, "end_id is 512"),
        ({"pad_id": [-2]}, "pad_id is -2"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestFailed) as refusal:
        parse(inputs(**changes), INFO)
    assert sentence in refusal.value.message
