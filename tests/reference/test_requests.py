from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tritonclient.utils import triton_to_np_dtype

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.engine_folder import EngineInfo
from trtllm_hpc.reference.generation import NO_END, GenerationRequest, Load, QueueFull, check_room
from trtllm_hpc.reference.requests import parse

from .servers import tensors

INFO = EngineInfo(
    dtype="float32",
    vocab_size=512,
    world_size=1,
    max_batch_size=8,
    max_input_len=16,
    max_seq_len=24,
    max_num_tokens=128,
    tokens_per_block=16,
)


def inputs(**changes: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays as Triton hands them over: a request of one prompt, and what a test changes."""
    values = {"input_ids": [[1, 5, 6, 7]], "input_lengths": [4], "request_output_len": [8], **changes}
    return {name: np.array(value) for name, value in values.items()}


def read(*, decoupled: bool = True, **changes: Any) -> GenerationRequest:
    found = parse(inputs(**changes), INFO, decoupled=decoupled)
    assert found is not None
    return found


def test_what_is_left_out_has_the_defaults_of_tensorrt_llm() -> None:
    assert read(decoupled=False) == GenerationRequest((1, 5, 6, 7), 8, NO_END)
    assert read(input_lengths=[2]).prompt == (1, 5), "tokens beyond input_lengths are padding"


def test_every_input_arrives() -> None:
    request = read(
        end_id=[2],
        temperature=[0.5],
        runtime_top_k=[40],
        runtime_top_p=[0.75],
        repetition_penalty=[1.25],
        min_length=[3],
        random_seed=[2**64 - 1],
        stop_words_list=[[[9, 10, 11, 0], [2, 3, -1, -1]]],
    )
    assert request == GenerationRequest(
        (1, 5, 6, 7), 8, 2, ((9, 10), (11,)), 0.5, 40, 0.75, 1.25, 3, 2**64 - 1
    )


@pytest.mark.parametrize(
    ("changes", "top_k", "top_p"),
    [
        ({}, 1, 1.0),
        ({"runtime_top_k": [0], "runtime_top_p": [0.0]}, 1, 1.0),
        ({"runtime_top_k": [50]}, 50, 1.0),
        ({"runtime_top_p": [0.5]}, 0, 0.5),
        ({"runtime_top_k": [50], "runtime_top_p": [0.5]}, 50, 0.5),
        ({"runtime_top_k": [50], "temperature": [0.0]}, 1, 1.0),
    ],
)
def test_top_k_and_top_p_mean_what_they_mean_upstream(
    changes: dict[str, Any], top_k: int, top_p: float
) -> None:
    request = read(**changes)
    assert (request.top_k, request.top_p) == (top_k, top_p)


def test_stop_request_of_tensorrt_llms_client() -> None:
    stopping = inputs(input_ids=[[77]], input_lengths=[0], request_output_len=[0], stop=[True])
    assert parse(stopping, INFO, decoupled=True) is None
    assert read(stop=[False]) == read()


def test_full_queue_is_told_in_the_words_that_upstreams_clients_look_for() -> None:
    busy = Load(max_requests=8, blocks_max=40, tokens_per_block=64, active=10, waiting=2)
    check_room(busy, 3)
    check_room(busy, 0)
    with pytest.raises(
        QueueFull, match=r"Exceeds maximum queue size.* Maximum queue size of 2 has been reached"
    ):
        check_room(busy, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"decoder_input_ids": [[2]], "decoder_input_lengths": [1]},
        {"draft_input_ids": [[]], "draft_acceptance_threshold": [0.5]},
        {"prompt_vocab_size": [7], "prompt_table_extra_ids": [[0, 0, 0, 0]]},
        {"prompt_embedding_table": [[]], "encoder_output_lengths": [0]},
        {"return_kv_cache_reuse_stats": [False], "skip_cross_attn_blocks": [[False]]},
        {"runtime_top_p_decay": [1.0], "runtime_top_p_min": [0.1], "runtime_top_p_reset_ids": [-1]},
        {"early_stopping": [False], "beam_search_diversity_rate": [0.5], "beam_width": [1]},
        {"bad_words_list": [[[0], [-1]]], "embedding_bias": [[0.0, 0.0]], "presence_penalty": [0.0]},
        {"len_penalty": [1.0], "pad_id": [2], "return_context_logits": [False]},
    ],
)
def test_what_asks_for_nothing_is_accepted(changes: dict[str, Any]) -> None:
    assert read(**changes) == read()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"temperature": [-0.5]}, "temperature is -0.5"),
        ({"temperature": [float("nan")]}, "temperature is nan"),
        ({"repetition_penalty": [0.0]}, "repetition_penalty is 0; it must be above 0"),
        ({"runtime_top_k": [-1]}, "runtime_top_k is -1; it must be at least 0"),
        ({"runtime_top_p": [1.5]}, "runtime_top_p is 1.5; it must be 0 to 1"),
        ({"min_length": [-1]}, "min_length is -1"),
        ({"bad_words_list": [[[9, 10], [2, -1]]]}, "bad_words_list asks for bad words, which the reference"),
        ({"num_return_sequences": [2]}, "num_return_sequences asks for several answers"),
        ({"beam_width": [2]}, "beam_width asks for beam search"),
        ({"presence_penalty": [0.5]}, "presence_penalty asks for"),
        ({"frequency_penalty": [float("nan")]}, "frequency_penalty asks for"),
        ({"return_context_logits": [True]}, "return_context_logits asks for logits"),
        ({"embedding_bias": [[0.0, 1.0]]}, "embedding_bias asks for a bias of tokens"),
        ({"lora_task_id": [0]}, "lora_task_id asks for LoRA adapters"),
        ({"input_ids": [[]], "input_lengths": [0]}, "prompt is empty"),
        ({"input_lengths": [9]}, "input_lengths is 9, but input_ids contains 4"),
        ({"request_output_len": [0]}, "it must be at least 1"),
        ({"request_output_len": [21]}, "make 25; this engine was built for max_seq_len 24"),
        (
            {"input_ids": [[1] * 17], "input_lengths": [17]},
            "17 tokens; this engine was built for max_input",
        ),
        ({"input_ids": [[1, 5, 512, 7]]}, "input_ids contains 512"),
        ({"end_id": [512]}, "end_id is 512"),
        ({"draft_input_ids": [[0]]}, "draft_input_ids asks for speculative decoding"),
        ({"prompt_embedding_table": [[[0.0]]]}, "prompt_embedding_table asks for prompt tuning"),
        ({"encoder_input_features": [[[0.0]]]}, "encoder_input_features asks for models with an encoder"),
        ({"context_phase_params": [[1]]}, "context_phase_params asks for disaggregated serving"),
        ({"return_kv_cache_reuse_stats": [True]}, "return_kv_cache_reuse_stats asks for statistics"),
        ({"runtime_top_p_decay": [0.9]}, "runtime_top_p_decay asks for"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestFailed) as refusal:
        read(**changes)
    assert sentence in refusal.value.message


def test_what_one_answer_cannot_hold_is_refused() -> None:
    with pytest.raises(RequestFailed, match=r"streaming=true needs a decoupled model.*repository\.decoupled"):
        read(streaming=[True], decoupled=False)
    with pytest.raises(RequestFailed, match="contains 2 prompts"):
        read(input_ids=[[1], [2]], input_lengths=[1, 1], request_output_len=[8, 8])
    with pytest.raises(RequestFailed, match=r"request_output_len \(max_tokens\) is missing"):
        parse({"input_ids": np.array([[1]])}, INFO, decoupled=True)
    with pytest.raises(RequestFailed, match="input_ids is missing"):
        parse({}, INFO, decoupled=True)


FORMS = {key[2]: form for key, form in tensors().items() if key[:2] == ("tensorrt_llm", "input")}


@st.composite
def passed_by_triton(draw: st.DrawFn) -> tuple[str, Any]:
    """An input's name, and any array that Triton lets pass for one prompt."""
    name = draw(st.sampled_from(sorted(FORMS)))
    form = FORMS[name]
    dims = () if form.is_scalar else form.dims
    shape = (1, *(draw(st.integers(0, 4)) if size == -1 else size for size in dims))
    return name, draw(arrays.arrays(dtype=triton_to_np_dtype(form.type), shape=shape))


@given(changes=st.lists(passed_by_triton(), min_size=1, max_size=3), decoupled=st.booleans())
def test_whatever_triton_lets_pass_is_read_or_refused(
    changes: list[tuple[str, Any]], decoupled: bool
) -> None:
    try:
        found = parse({**inputs(), **dict(changes)}, INFO, decoupled=decoupled)
    except RequestFailed as error:
        assert error.message.endswith(".")
        return
    if found is not None:
        assert 0 < len(found.prompt) <= INFO.max_input_len
        assert len(found.prompt) + found.max_new_tokens <= INFO.max_seq_len
        assert all(0 <= token < INFO.vocab_size for token in found.prompt)
