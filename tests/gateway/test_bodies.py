"""Bodies of requests: what is taken, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtllm_hpc.gateway.answers import ApiError
from trtllm_hpc.gateway.bodies import ChatBody, CompletionBody, parse

TOOL = {"type": "function", "function": {"name": "look_up"}}
USER = {"role": "user", "content": "Who?"}
CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"name": "A"}'}}


def chat(*messages: dict[str, Any], **keys: Any) -> ChatBody:
    return parse(ChatBody, json.dumps({"model": "m", "messages": [USER, *messages], **keys}).encode())


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
    assert chat(**keys).messages == [USER]


def test_a_history_with_tool_calls_reaches_the_template() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    answered = {"role": "tool", "tool_call_id": "1", "content": "A is 7."}
    _, first, second = chat(called, answered).messages
    function = {"name": "look_up", "arguments": {"name": "A"}}
    assert first["content"] is None and first["tool_calls"] == [{**CALL, "function": function}]
    assert second == answered


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tools", [TOOL], "tools is not supported by this server."),
        ("response_format", {"type": "json_object"}, "response_format is not supported by this server."),
        ("logit_bias", {"5": 1}, "logit_bias is not supported by this server."),
        ("temprature", 1, "temprature is not supported by this server."),
        ("logprobs", True, "logprobs is not supported by this server."),
        ("temperature", "hot", "temperature: input should be a valid number."),
        ("stop", "", "stop.0: string should have at least 1 character."),
        ("messages", [], "messages: list should have at least 1 item"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "of the type 'image_url'"),
        ("messages", [USER, {"role": "assistant", "content": None}], "content must be a text"),
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
        ({"prompt": "A", "logprobs": 0}, "logprobs"),
        ({}, "prompt"),
    ],
)
def test_what_a_completion_cannot_have_is_refused_by_name(keys: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(CompletionBody, json.dumps({"model": "m", **keys}).encode())
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
    with pytest.raises(ApiError, match=r"is not JSON|must be a JSON object") as caught:
        parse(CompletionBody, body)
    caught.value.message.encode()
