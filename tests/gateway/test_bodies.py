"""What others' clients send: bodies that are chunked, compressed or damaged, tools and usage."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.client.test_wrong_answers import Server, serving
from tests.gateway.test_failures import ASKED, INPUTS, ask, ids
from tests.gateway.test_failures import tokenizer as tokenizer
from trtllm_hpc.gateway.errors import ApiError
from trtllm_hpc.gateway.requests import ChatRequest, CompletionRequest, parse
from trtllm_hpc.paths import read_json, write_json
from trtllm_hpc.runtime.records import Endpoint

HEADERS = {"Content-Type": "application/json"}
TOOL = {"type": "function", "function": {"name": "look_up"}}
USER = {"role": "user", "content": "Who?"}
CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"name": "A"}'}}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def endpoint(server: Server) -> Iterator[Endpoint]:
    with serving(server, ("tensorrt_llm", INPUTS)) as found:
        yield found


def chat(*messages: dict[str, Any], **keys: Any) -> ChatRequest:
    return parse(ChatRequest, json.dumps({"model": "m", "messages": [USER, *messages], **keys}).encode())


@pytest.mark.parametrize(
    "keys",
    [
        {"tools": [], "tool_choice": "auto"},
        {"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": True},
        {"functions": [{"name": "look_up"}], "function_call": "none"},
        {"tools": None, "tool_choice": None, "response_format": {"type": "text"}},
    ],
)
def test_keys_that_ask_for_nothing_are_taken(keys: dict[str, Any]) -> None:
    assert chat(**keys).messages


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}])
def test_tools_that_may_be_called_are_refused(choice: Any) -> None:
    with pytest.raises(ApiError, match="is not supported") as caught:
        chat(tools=[TOOL], tool_choice=choice)
    assert caught.value.param == "tools"


def test_a_history_with_tool_calls_reaches_the_template() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []}
    answered = {"role": "tool", "tool_call_id": "1", "content": "A is 7."}
    _, first, second = (each.for_template() for each in chat(called, answered).messages)
    function = {"name": "look_up", "arguments": {"name": "A"}}
    assert first == {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": function}]}
    assert second == answered
    with pytest.raises(ApiError, match=r"messages\.1: content is missing"):
        chat({"role": "assistant", "content": None})


@pytest.mark.parametrize(
    "keys",
    [
        {"response_format": {"type": "json_object"}},
        {"logit_bias": {"5": 1}},
        {"echo": True},
        {"beam_width": 2},
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_what_the_gateway_does_not_have_is_refused_by_name(keys: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="is not supported by this server") as caught:
        chat(**keys)
    assert caught.value.param == next(iter(keys))


def test_usage_in_every_chunk(server: Server, endpoint: Endpoint, tokenizer: Path) -> None:
    found: list[tuple[int, int]] = []

    async def read(client: openai.AsyncOpenAI) -> None:
        options: Any = {"include_usage": True, "continuous_usage_stats": True}
        async for chunk in await client.completions.create(stream=True, stream_options=options, **ASKED):
            assert chunk.usage is not None
            found.append((chunk.usage.prompt_tokens, chunk.usage.completion_tokens))

    server.stream = [ids(70), ids(71), ids(72, 73, final=True)]
    ask(endpoint, tokenizer, read)
    assert [tokens for _, tokens in found] == [1, 2, 4, 4, 4] and len({prompt for prompt, _ in found}) == 1


@pytest.mark.parametrize(
    "body",
    [rb'{"model": "m", "prompt": "a\ud800b"}', b'{"model": "m", "prompt": "a\xed\xa0\x80b"}', b"[" * 200_000],
)
def test_what_is_not_text_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match=r"half of a surrogate pair|is not JSON") as caught:
        parse(CompletionRequest, body)
    assert caught.value.status == 400
    caught.value.message.encode()


def sent(
    endpoint: Endpoint, tokenizer: Path, content: bytes, coding: str = "identity", *, chunked: bool = False
) -> Any:
    async def asking(client: openai.AsyncOpenAI) -> Any:
        named = {"Content-Encoding": coding}
        body = pieces(content) if chunked else content
        return await client._client.post("http://here/v1/completions", content=body, headers=HEADERS | named)

    return ask(endpoint, tokenizer, asking)


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(body), 10):
        yield body[begin : begin + 10]


def test_bodies_may_be_chunked_or_compressed(server: Server, endpoint: Endpoint, tokenizer: Path) -> None:
    server.stream = [ids(80, 81, 82, 83, final=True)]
    body = json.dumps(ASKED).encode()
    assert sent(endpoint, tokenizer, body, chunked=True).status_code == 200
    assert sent(endpoint, tokenizer, gzip.compress(body, mtime=0), "gzip", chunked=True).status_code == 200


@pytest.mark.parametrize(
    ("content", "coding", "status"),
    [
        (gzip.compress(b" " * (65 << 20)), "gzip", 413),
        (b" " * (65 << 20), "identity", 413),
        (b"{}", "gzip", 400),
        (gzip.compress(b"{}", mtime=0)[:-9], "gzip", 400),
        (b"{}", "br", 415),
    ],
    ids=("unpacks to much", "much", "not packed", "cut short", "another coding"),
)
def test_bodies_are_bounded(
    endpoint: Endpoint, tokenizer: Path, content: bytes, coding: str, status: int
) -> None:
    answer = sent(endpoint, tokenizer, content, coding)
    assert answer.status_code == status and answer.json()["error"]["message"]


def test_a_chat_that_is_too_long_has_the_words_that_clients_look_for(
    tokenizer: Path, endpoint: Endpoint
) -> None:
    from trtllm_hpc.gateway.facts import Facts
    from trtllm_hpc.gateway.service import Service

    file = tokenizer / "tokenizer_config.json"
    write_json(file, {**dict(read_json(file) or {}), "chat_template": "{{ messages[0].content }}"})
    service = Service(endpoint, Facts("m", tokenizer, max_seq_len=8))
    for count in (9, 9000):
        with pytest.raises(ApiError, match=r"^This model's maximum context length is 8 tokens") as caught:
            service.prompts(chat(messages=[{**USER, "content": "A, " * count}]))
        assert caught.value.code == "context_length_exceeded"
