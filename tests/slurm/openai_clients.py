"""OpenAI's own clients, and curl, at the endpoint of a served run: unchanged, as a person would use them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import openai
import pytest

from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.runtime.records import Endpoint

PROMPTS = ["What is machine learning?", "Où est passé", "A"]
GREEDY: dict[str, Any] = {"max_tokens": 12, "temperature": 0}


def assert_answered_as_by_ensemble(endpoint: Endpoint) -> None:
    """Greedy texts are those that Triton's own protocol gives, from every client, whole and streamed.

    The models of the run must be decoupled.
    """
    with Client(endpoint, "ensemble") as triton:
        expected = [triton.generate(each, max_tokens=12, exclude_input=True).text for each in PROMPTS]
    assert len(set(expected)) == len(PROMPTS) and all(expected)
    url, key = endpoint.openai_url, endpoint.authorization["authorization"].removeprefix("Bearer ")
    assert url is not None
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
        [model] = client.models.list().data
        ask: dict[str, Any] = {"model": model.id, **GREEDY}
        whole = client.completions.create(prompt=PROMPTS, **ask)
        assert [choice.text for choice in whole.choices] == expected
        for prompt, text in zip(PROMPTS, expected, strict=True):
            chunks = list(client.completions.create(prompt=prompt, stream=True, **ask))
            assert "".join(chunk.choices[0].text for chunk in chunks) == text and len(chunks) > 1
        _assert_tools_are_refused(client, model.id)
    assert asyncio.run(_answers(url, key, ask)) == expected
    assert [_by_curl(url, key, {"prompt": each, **ask}) for each in PROMPTS] == expected
    assert [_by_curl(url, key, {"prompt": each, "stream": True, **ask}) for each in PROMPTS] == expected
    refused = json.loads(_curl(url, "another", json.dumps({"prompt": "A", **ask})))
    assert "a key is needed" in refused["error"]["message"]


async def _answers(url: str, key: str, ask: dict[str, Any]) -> list[str]:
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:

        async def streamed(prompt: str) -> str:
            chunks = await client.completions.create(prompt=prompt, stream=True, **ask)
            return "".join([chunk.choices[0].text async for chunk in chunks])

        return list(await asyncio.gather(*map(streamed, PROMPTS)))


def _assert_tools_are_refused(client: openai.OpenAI, model: str) -> None:
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    question: Any = [{"role": "user", "content": "Is it cold?"}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=question, tools=[tool])
    assert "tools is not supported by this server." in caught.value.message
    assert (caught.value.param, caught.value.type) == ("tools", "invalid_request_error")


def _by_curl(url: str, key: str, body: dict[str, Any]) -> str:
    """The text that curl gets, whole or as events."""
    said = _curl(url, key, json.dumps(body))
    if not body.get("stream"):
        return str(json.loads(said)["choices"][0]["text"])
    *events, done = [line.removeprefix("data: ") for line in said.splitlines() if line]
    assert done == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def _curl(url: str, key: str, body: str) -> str:
    headers = ["-H", f"Authorization: Bearer {key}", "-H", "Content-Type: application/json"]
    command = ["curl", "-sN", f"{url}/completions", *headers, "-d", body]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
