"""Bodies of requests: what is taken, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtllm_hpc.gateway.answers import ApiError
from trtllm_hpc.gateway.requests import ChatRequest, CompletionRequest, parse

TOOL = {"type": "function", "function": {"name": "look_up"}}
USER = {"role": "user", "content": "Who?"}
CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"name": "A"}'}}


def chat(*messages: dict[str, Any], **keys: Any) -> ChatRequest:
    return parse(ChatRequest, json.dumps({"model": "m", "messages": [USER, *messages], **keys}).encode())


@pytest.mark.parametrize(
    "keys",
    [
        {"tools": [], "tool_choice": "auto"},
        {"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": True},
        {"functions": [{"name": "look_up"}], "function_call": "none"},
        {"tools": None, "tool_choice": None, "response_format": {"type": "text"}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]},
    ],
)
def test_keys_that_ask_for_nothing_are_taken(keys: dict[str, Any]) -> None:
    assert [message.content for message in chat(**keys).messages] == ["Who?"]


def test_a_history_with_tool_calls_reaches_the_template() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []}
    answered = {"role": "tool", "tool_call_id": "1", "content": "A is 7."}
    _, first, second = (message.for_template() for message in chat(called, answered).messages)
    function = {"name": "look_up", "arguments": {"name": "A"}}
    assert first == {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": function}]}
    assert second == answered


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tools", [TOOL], "tools is not supported by this server."),
        ("tool_choice", "required", "tool_choice is not supported by this server."),
        ("response_format", {"type": "json_object"}, "response_format is not supported by this server."),
        ("logit_bias", {"5": 1}, "logit_bias is not supported by this server."),
        ("echo", True, "echo is not supported by this server."),
        ("best_of", 2, "best_of is not supported by this server."),
        ("beam_width", 2, "beam_width is not supported by this server."),
        ("temprature", 1, "temprature is not known here. Did you mean temperature?"),
        ("temperature", "hot", "temperature: input should be a valid number."),
        ("max_tokens", 0, "max_tokens: input should be greater than or equal to 1."),
        ("n", True, "n: input should be a valid integer."),
        ("stop", 3, "stop: input should be a valid list."),
        ("stop", "", "stop: a text to stop at is empty."),
        ("top_logprobs", 3, "top_logprobs: input should be 0."),
        ("stream_options", {"include_usage": True}, "stream_options: it goes with stream: true."),
        ("messages", [], "messages: list should have at least 1 item"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "of the type 'image_url'"),
        ("messages", [USER, {"role": "assistant", "content": None}], "messages.1: content is missing"),
    ],
)
def test_what_a_chat_cannot_have_is_refused_by_name(key: str, value: Any, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**{key: value})
    assert (caught.value.status, caught.value.param) == (400, key) and message in caught.value.message


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": ["A"] * 65, "n": 2}, "prompt"),
        ({"prompt": "A", "logprobs": 2}, "logprobs"),
        ({}, "prompt"),
    ],
)
def test_what_a_completion_cannot_have_is_refused_by_name(keys: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(CompletionRequest, json.dumps({"model": "m", **keys}).encode())
    assert caught.value.param == wrong


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model": "m", "prompt": "a\ud800b"}',
        b'{"model": "m", "prompt": "a\xed\xa0\x80b"}',
        b"[" * 200_000,
        b"{",
        b"[]",
    ],
)
def test_what_is_not_text_is_refused(body: bytes) -> None:
    with pytest.raises(
        ApiError, match=r"half of a surrogate pair|is not JSON|must be a JSON object"
    ) as caught:
        parse(CompletionRequest, body)
    assert caught.value.status == 400
    caught.value.message.encode()
