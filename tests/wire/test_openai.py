"""Responses of OpenAI's protocol, as servers write them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtllm_hpc.wire.openai import parse_response
from trtllm_hpc.wire.response import Part, Response, Usage, WrongResponse


def parsed(**body: Any) -> Response:
    return parse_response(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("choice", "part"),
    [
        ({"text": "a", "index": 1}, Part("a", place=(1, 0))),
        ({"text": None}, Part("")),
        ({"delta": {"content": "a", "role": "assistant"}}, Part("a")),
        ({"delta": {}, "message": None}, Part("")),
        ({"message": {"content": None, "reasoning_content": "hm"}}, Part("", thought="hm")),
        ({"delta": {"reasoning": "hm", "reasoning_content": None}}, Part("", thought="hm")),
        ({"text": "a", "logprobs": {"token_logprobs": [None, -1.5]}}, Part("a", log_probs=(-1.5,))),
        (
            {"text": "a", "logprobs": {"token_logprobs": [-float("inf")]}},
            Part("a", log_probs=(-float("inf"),)),
        ),
        ({"delta": {"content": "a"}, "logprobs": {"content": [{"logprob": -2}]}}, Part("a", log_probs=(-2,))),
        ({"text": "\ud800"}, Part("\ud800")),
    ],
)
def test_a_choice_is_a_part(choice: dict[str, Any], part: Part) -> None:
    assert parsed(choices=[choice], more={"x": 1}) == Response([part])


def test_a_response_may_have_an_end_or_a_usage() -> None:
    assert parsed(choices=[{"text": "a", "finish_reason": "stop"}]).is_last
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": None}
    counts = {"prompt_tokens": 7, "completion_tokens": "4", **details}
    assert parsed(choices=[], usage=counts) == Response((), Usage(7, None, 3))
    assert parsed(usage=None) == parsed(choices=None) == Response(())


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[1]", b"null", b"{}", b'{"choices": 1}', b'{"choices": [1]}'),
        b'{"choices": [{"text": 1}]}',
        b'{"choices": [{"text": "a", "index": "b"}]}',
        b'{"choices": [{"delta": "a"}]}',
        b'{"choices": [{"text": "\xff"}]}',
    ],
)
def test_anything_else_is_wrong(data: bytes) -> None:
    with pytest.raises(WrongResponse):
        parse_response(data)
