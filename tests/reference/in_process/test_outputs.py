from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtllm_hpc.reference.delivery import Answer
from trtllm_hpc.reference.generation import GenerationRequest, Progress
from trtllm_hpc.reference.requests import Part

pytestmark = pytest.mark.model

ALL = (
    "output_ids",
    "sequence_length",
    "cum_log_probs",
    "output_log_probs",
    "context_logits",
    "generation_logits",
    "batch_index",
    "sequence_index",
)

TWO_BEAMS = Progress(
    tokens=((7, 8, 9), (7,)),
    log_probs=((-1.0, -2.0, -3.0), (-4.0,)),
    is_final=True,
)


def request(**changes: Any) -> GenerationRequest:
    return GenerationRequest(prompt=(1, 2), max_new_tokens=3, beam_width=2, **changes)


def values(part: Part, progress: Progress) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in Answer(part).tensors([progress], ALL).items()}


def test_answer_holds_prompt_and_new_tokens_of_every_beam() -> None:
    found = values(Part(request(return_log_probs=True), 3, 4, beams=2), TWO_BEAMS)
    assert found["output_ids"] == [[[1, 2, 7, 8, 9], [1, 2, 7, -1, -1]]]
    assert found["sequence_length"] == [[5, 3]]
    assert found["cum_log_probs"] == [[-6.0, -4.0]]
    assert found["output_log_probs"] == [[[-1.0, -2.0, -3.0], [-4.0, -1.0, -1.0]]]
    assert (found["batch_index"], found["sequence_index"]) == ([[3]], [[4]])


def test_indices_and_log_probs_are_sent_only_where_they_tell_something() -> None:
    assert set(values(Part(request()), TWO_BEAMS)) == {"output_ids", "sequence_length"}


def test_only_the_best_beams_are_sent_where_fewer_are_wanted() -> None:
    found = values(Part(request(), beams=1), TWO_BEAMS)
    assert found["output_ids"] == [[[1, 2, 7, 8, 9]]]
    assert found["sequence_length"] == [[5]]


@pytest.mark.parametrize("change", [{"exclude_input": True}, {"streaming": True}])
def test_prompt_is_left_out(change: dict[str, Any]) -> None:
    found = values(Part(request(**change), beams=1), TWO_BEAMS)
    assert found["output_ids"] == [[[7, 8, 9]]]


def test_answer_without_any_token_is_empty() -> None:
    nothing = Progress(tokens=((),), log_probs=((),), is_final=True)
    tensors = Answer(Part(request(streaming=True))).tensors([nothing], ALL)
    assert tensors["output_ids"].shape == (1, 1, 0)
    assert tensors["sequence_length"].tolist() == [[0]]


def test_types_and_shapes_are_those_of_the_contract() -> None:
    logits = Progress(
        tokens=((7, 8),),
        log_probs=((-1.0, -2.0),),
        is_final=True,
        context_logits=np.ones((2, 6), np.float32),
        generation_logits=np.ones((1, 2, 6), np.float32),
    )
    tensors = Answer(Part(request(return_log_probs=True), 0, 0)).tensors([logits], ALL)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()} == {
        "output_ids": (np.int32, (1, 1, 4)),
        "sequence_length": (np.int32, (1, 1)),
        "cum_log_probs": (np.float32, (1, 1)),
        "output_log_probs": (np.float32, (1, 1, 2)),
        "context_logits": (np.float32, (1, 2, 6)),
        "generation_logits": (np.float32, (1, 1, 2, 6)),
        "batch_index": (np.int32, (1, 1)),
        "sequence_index": (np.int32, (1, 1)),
    }


def test_only_what_is_wanted_is_sent() -> None:
    assert set(Answer(Part(request())).tensors([TWO_BEAMS], ("output_ids",))) == {"output_ids"}


def test_responses_of_a_stream_hold_their_tokens_and_what_upstream_repeats() -> None:
    """What is ready goes into one response; log-probabilities and context logits are repeated."""
    context = np.ones((2, 6), np.float32)
    tokens = [
        Progress(
            ((token,),),
            ((-float(token),),),
            is_final=token == 4,
            context_logits=context if token == 1 else None,
            generation_logits=np.full((1, 1, 6), token, np.float32),
        )
        for token in (1, 2, 3, 4)
    ]
    answer = Answer(Part(request(streaming=True, return_log_probs=True)))
    first, second = answer.tensors(tokens[:1], ALL), answer.tensors(tokens[1:], ALL)
    assert [response["output_ids"].tolist() for response in (first, second)] == [[[[1]]], [[[2, 3, 4]]]]
    assert [response["sequence_length"].tolist() for response in (first, second)] == [[[1]], [[3]]]
    assert second["output_log_probs"].tolist() == [[[-1.0, -2.0, -3.0, -4.0]]]
    assert [response["cum_log_probs"].tolist() for response in (first, second)] == [[[-1.0]], [[-10.0]]]
    assert all((response["context_logits"] == context).all() for response in (first, second))
    assert second["generation_logits"][0, 0, :, 0].tolist() == [2.0, 3.0, 4.0]
    assert answer.new_tokens == 4
