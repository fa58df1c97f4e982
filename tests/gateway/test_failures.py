"""What the client is told when the server fails, and of servers that the gateway cannot ask."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import httpx2 as httpx
import numpy as np
import openai
import pytest
from tritonclient.grpc import service_pb2

from tests.client.test_wrong_answers import Server, response, serving
from trtllm_hpc.gateway.app import make_app
from trtllm_hpc.gateway.facts import Facts
from trtllm_hpc.gateway.service import Service
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
def server() -> Server:
    return Server()


@pytest.fixture
def endpoint(server: Server) -> Iterator[Endpoint]:
    with serving(server, ("tensorrt_llm", INPUTS)) as found:
        yield found


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    make_tokenizer(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def ask(endpoint: Endpoint, tokenizer: Path, asking: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Any:
    """Have the official client ask a gateway in this process."""

    async def asked() -> Any:
        service = Service(endpoint, Facts("m", tokenizer))
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
    server: Server, endpoint: Endpoint, tokenizer: Path, stream: list[Any], status: int
) -> None:
    server.stream = stream
    with pytest.raises(openai.APIStatusError) as caught:
        ask(endpoint, tokenizer, lambda client: client.completions.create(**ASKED))
    body: Any = caught.value.body
    assert caught.value.status_code == status
    assert set(body) == {"message", "type", "param", "code"} and "Traceback" not in body["message"]


@pytest.mark.parametrize(
    "message",
    [
        "Prompt length (200) exceeds maximum input length (96). Set log level to info",
        "The prompt has 200 tokens; this engine was built for max_input_len 96.",
        "The prompt's 90 tokens and the 9 asked for make 99; this engine was built for max_seq_len 96.",
    ],
)
def test_a_prompt_too_long_for_the_server_has_the_words_that_clients_look_for(
    server: Server, endpoint: Endpoint, tokenizer: Path, message: str
) -> None:
    server.stream = [refused(message)]
    words = rf"This model's maximum context length is 96 tokens\. .*{re.escape(message)}"
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        ask(endpoint, tokenizer, lambda client: client.completions.create(**ASKED))
    assert caught.value.code == "context_length_exceeded"


def test_a_failure_in_a_stream_is_an_event(server: Server, endpoint: Endpoint, tokenizer: Path) -> None:
    found: list[str] = []

    async def read(client: openai.AsyncOpenAI) -> None:
        async for chunk in await client.completions.create(stream=True, **ASKED):
            found.append(chunk.choices[0].text)

    server.stream = [ids(70), ids(71), grpc.StatusCode.UNAVAILABLE]
    with pytest.raises(openai.APIError, match="was lost after 2 responses"):
        ask(endpoint, tokenizer, read)
    assert len(found) == 2
    server.stream = [refused(FULL)]
    with pytest.raises(openai.RateLimitError):
        ask(endpoint, tokenizer, read)


def test_servers_that_repeat_the_prompt_or_answer_nothing(
    server: Server, endpoint: Endpoint, tokenizer: Path
) -> None:
    def one() -> Any:
        return ask(
            endpoint, tokenizer, lambda client: client.completions.create(**{**ASKED, "prompt": [70, 71]})
        )

    server.stream = [ids(70, 71, 80, 81, final=True)]
    repeated = one()
    assert (repeated.usage.prompt_tokens, repeated.usage.completion_tokens) == (2, 2)
    server.stream = [response(True)]
    nothing = one()
    assert (nothing.choices[0].text, nothing.choices[0].finish_reason) == ("", "stop")
    server.stream = [ids(80, 81, 82, 83, final=True)]
    assert one().choices[0].finish_reason == "length"


def test_a_model_of_texts_is_refused(server: Server, tokenizer: Path) -> None:
    inputs = {"text_input": "TYPE_STRING", "sampling_param_max_tokens": "TYPE_INT32"}
    with (
        serving(server, ("tensorrt_llm", inputs)) as endpoint,
        pytest.raises(openai.APIStatusError) as caught,
    ):
        ask(endpoint, tokenizer, lambda client: client.completions.create(**ASKED))
    assert caught.value.status_code == 501 and "LLM API" in caught.value.message


def test_a_missing_tokenizer_is_told(endpoint: Endpoint, tmp_path: Path) -> None:
    with pytest.raises(openai.APIStatusError, match=r"no tokenizer\.json") as caught:
        ask(endpoint, tmp_path, lambda client: client.completions.create(**ASKED))
    assert caught.value.status_code == 502
