"""Answers and errors for the official client, from servers that answer, fail, or cannot be asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import httpx2 as httpx
import numpy as np
import openai
import pytest
from tritonclient.grpc import service_pb2

from tests.client.fake_triton import FakeTriton, response, serving
from trtllm_hpc.gateway.app import make_app
from trtllm_hpc.gateway.service import Facts, ServedByTriton
from trtllm_hpc.reference.synthetic import make_tokenizer
from trtllm_hpc.runtime.records import Endpoint

INPUTS = dict.fromkeys(
    ["input_ids", "input_lengths", "request_output_len", "runtime_top_k", "end_id", "pad_id"], "TYPE_INT32"
) | {"streaming": "TYPE_BOOL"}
FULL = (
    "Exceeds maximum queue size: 3 requests wait. Maximum queue size of 3 has been reached; try again later."
)
ASKED: dict[str, Any] = {"model": "m", "prompt": "Hello", "temperature": 0, "max_tokens": 4}


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton()


@pytest.fixture
def endpoint(server: FakeTriton) -> Iterator[Endpoint]:
    with serving(server, ("tensorrt_llm", INPUTS)) as found:
        yield found


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    make_tokenizer(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def ask(
    endpoint: Endpoint, facts: Facts | Path, asking: Callable[[openai.AsyncOpenAI], Awaitable[Any]]
) -> Any:
    """Have the official client ask a gateway in this process."""

    async def asked() -> Any:
        service = ServedByTriton(endpoint, facts if isinstance(facts, Facts) else Facts("m", facts))
        transport = httpx.ASGITransport(app=make_app(service), raise_app_exceptions=False)
        http = httpx.AsyncClient(transport=transport)
        client = openai.AsyncOpenAI(
            base_url="http://here/v1", api_key="none", http_client=http, max_retries=0
        )
        async with client:
            try:
                return await asking(client)
            finally:
                await service.close()

    return asyncio.run(asked())


def complete(endpoint: Endpoint, facts: Facts | Path, **keys: Any) -> Any:
    return ask(endpoint, facts, lambda client: client.completions.create(**{**ASKED, **keys}))


def stream(endpoint: Endpoint, tokenizer: Path, found: list[Any], **keys: Any) -> None:
    """Put the chunks of a streamed completion into a list, also if it fails in the middle."""

    async def read(client: openai.AsyncOpenAI) -> None:
        async for chunk in await client.completions.create(stream=True, **{**ASKED, **keys}):
            found.append(chunk)

    ask(endpoint, tokenizer, read)


def refused(message: str) -> Any:
    return service_pb2.ModelStreamInferResponse(error_message=message)


def ids(*tokens: int, final: bool = False) -> Any:
    return response(final, output_ids=("INT32", [1, 1, len(tokens)], np.array(tokens, np.int32).tobytes()))


@pytest.mark.parametrize(
    ("stream", "status"),
    [
        ([refused(FULL)], 429),
        ([refused("Maximum queue size of 8 has been reached, please try again later")], 429),
        ([refused("input_lengths is 9, but max_input_len is 4.")], 400),
        ([refused("Encountered an error in forwardAsync function: CUDA runtime error")], 500),
        ([refused("The model tensorrt_llm is not loaded.")], 500),
        ([grpc.StatusCode.UNAVAILABLE], 503),
        ([ids(70), grpc.StatusCode.UNAVAILABLE], 502),
        ([ids(70)], 502),
        ([response(output_ids=("INT32", [1, 1, 9], b"1234"))], 502),
    ],
)
def test_a_failure_of_the_server_has_its_status(
    server: FakeTriton, endpoint: Endpoint, tokenizer: Path, stream: list[Any], status: int
) -> None:
    server.stream = stream
    with pytest.raises(openai.APIStatusError) as caught:
        complete(endpoint, tokenizer)
    body: Any = caught.value.body
    assert caught.value.status_code == status
    assert set(body) == {"message", "type", "param", "code"} and "Traceback" not in body["message"]


def test_a_prompt_too_long_for_the_engine_is_refused_before_it_is_sent(
    endpoint: Endpoint, tokenizer: Path
) -> None:
    words = r"This model's maximum context length is 8 tokens, but"
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        complete(endpoint, Facts("m", tokenizer, max_seq_len=8), max_tokens=8)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_a_failure_in_a_stream_is_an_event(server: FakeTriton, endpoint: Endpoint, tokenizer: Path) -> None:
    found: list[Any] = []
    server.stream = [ids(70), ids(71), grpc.StatusCode.UNAVAILABLE]
    with pytest.raises(openai.APIError, match="was lost after 2 responses"):
        stream(endpoint, tokenizer, found)
    assert len(found) == 2
    server.stream = [refused(FULL)]
    with pytest.raises(openai.RateLimitError):
        stream(endpoint, tokenizer, found)


def test_servers_that_repeat_the_prompt_or_answer_nothing(
    server: FakeTriton, endpoint: Endpoint, tokenizer: Path
) -> None:
    server.stream = [ids(70, 71, 80, 81, final=True)]
    repeated = complete(endpoint, tokenizer, prompt=[70, 71])
    assert (repeated.usage.prompt_tokens, repeated.usage.completion_tokens) == (2, 2)
    found: list[Any] = []
    server.stream = [ids(70), ids(71), ids(80, final=True)]
    stream(endpoint, tokenizer, found, prompt=[70, 71], stream_options={"include_usage": True})
    assert found[-1].usage.completion_tokens == 3, "a stream that begins like the prompt"
    server.stream = [response(True)]
    nothing = complete(endpoint, tokenizer)
    assert (nothing.choices[0].text, nothing.choices[0].finish_reason) == ("", "stop")
    server.stream = [ids(80, 81, 82, 83, final=True)]
    assert complete(endpoint, tokenizer).choices[0].finish_reason == "length"


def test_a_model_of_texts_is_refused(server: FakeTriton, tokenizer: Path) -> None:
    inputs = {"text_input": "TYPE_STRING", "sampling_param_max_tokens": "TYPE_INT32"}
    with (
        serving(server, ("tensorrt_llm", inputs)) as endpoint,
        pytest.raises(openai.APIStatusError) as caught,
    ):
        complete(endpoint, tokenizer)
    assert caught.value.status_code == 501 and "LLM API" in caught.value.message


def test_an_input_that_the_model_lacks_is_named(endpoint: Endpoint, tokenizer: Path) -> None:
    with pytest.raises(openai.BadRequestError, match="has no input for presence_penalty") as caught:
        complete(endpoint, tokenizer, presence_penalty=1)
    assert caught.value.param == "presence_penalty"


def test_a_missing_tokenizer_is_named(endpoint: Endpoint, tmp_path: Path) -> None:
    with pytest.raises(openai.APIStatusError, match=r"no tokenizer\.json") as caught:
        complete(endpoint, tmp_path)
    assert caught.value.status_code == 502


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("completions", b" " * (65 << 20), 413),
        ("completions", b"{}", 400),
        ("embeddings", b"{}", 404),
        ("models", b"{}", 405),
    ],
)
def test_what_is_not_a_request_is_refused(
    endpoint: Endpoint, tokenizer: Path, path: str, body: bytes, status: int
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for begin in range(0, len(body), 1 << 20):  # chunked, so that no header names the size
            yield body[begin : begin + (1 << 20)]

    async def post(client: openai.AsyncOpenAI) -> Any:
        headers = {"Content-Type": "application/json"}
        return await client._client.post(f"http://here/v1/{path}", content=pieces(), headers=headers)

    answer = ask(endpoint, tokenizer, post)
    assert answer.status_code == status and answer.json()["error"]["message"]
