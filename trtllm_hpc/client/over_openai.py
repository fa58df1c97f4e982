"""Requests to a server with OpenAI's completions, such as ``trtllm-serve`` or vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trtllm_hpc.client.early_end import Course, until_ended
from trtllm_hpc.client.options import BY_NAME
from trtllm_hpc.client.reply import OnText, Outputs, Reply
from trtllm_hpc.client.request import Answer, Request
from trtllm_hpc.client.served_model import TEXT_OUTPUT, ServedModel
from trtllm_hpc.errors import AnswerTimedOut, InvalidRequest, RequestFailed, ServerUnreachable
from trtllm_hpc.runtime.records import Endpoint

_STANDARD = frozenset(
    {
        *("max_tokens", "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "n"),
        *("stop", "logprobs"),
    }
)
"""Keys that OpenAI defines. The others are sent as further keys, which a server may not know and ignore."""

_NO_KEY = "none"
"""The library asks for a key in any case."""


class OpenAIModel:
    """One model of a server with OpenAI's protocol, for any number of requests at once."""

    protocol = "openai"

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        assert endpoint.openai_url is not None
        self.model = ServedModel(model, {"text_input": ""}, batched=True, decoupled=True)
        self._url = endpoint.openai_url
        key = endpoint.authorization.get("authorization", "").removeprefix("Bearer ")
        # A proxy for the outside world cannot reach compute nodes; see http.py.
        direct = DefaultAsyncHttpxClient(verify=endpoint.tls() or True, trust_env=not endpoint.job_id)
        self._client = AsyncOpenAI(
            base_url=self._url, api_key=key or _NO_KEY, max_retries=0, http_client=direct
        )

    async def close(self) -> None:
        """End the connections."""
        await self._client.close()

    async def count(self, texts: list[str]) -> list[int] | None:
        """Return ``None``: the protocol has no tokenizer."""
        return None

    async def stop(self, request_id: str) -> None:
        """Do nothing: the protocol has no such call; a request of this client ends with its connection."""

    async def ask(
        self, request: Request, on_text: OnText | None = None, ended: asyncio.Event | None = None
    ) -> tuple[Answer, ...]:
        """Send a request, as ``TritonModel.ask`` does."""
        course, details = Course(), _Details()
        reply = Reply(self.model, request, self.protocol)
        responses = until_ended(self._responses(request, details), course, request.stop_after_s, ended)
        answers = await reply.answers(responses, course, on_text)
        return tuple(details.added(answer, len(answers)) for answer in answers)

    async def _responses(self, request: Request, details: _Details) -> AsyncGenerator[Outputs]:
        """Yield each part of the texts as tensors of Triton's names."""
        body = self._body(request)
        several = request.options.get("return_sequences", 1)
        with _told(self._url, request.timeout_s):
            calls: Any = self._client.chat.completions if request.messages else self._client.completions
            created = await calls.create(**body, timeout=request.timeout_s)
            parts = created if request.stream else _whole(created)
            async for part in parts:
                details.add(part)
                for choice in part.choices:
                    prompt, sequence = divmod(choice.index, several)
                    yield _outputs(_text(choice), prompt, sequence)

    def _body(self, request: Request) -> dict[str, Any]:
        """Return the request's body. Raises InvalidRequest if the protocol has no key for an option."""
        if request.logits or request.adapter is not None:
            raise InvalidRequest("OpenAI's protocol has neither logits nor LoRA adapters by their weights.")
        if request.messages and request.options.get("log_probs"):
            raise InvalidRequest("A chat has no --log-probs here.", hint="ask without --chat")
        prompts = [prompt if isinstance(prompt, str) else list(prompt) for prompt in request.prompts]
        asked: dict[str, Any] = {"prompt": prompts[0] if len(prompts) == 1 else prompts}
        if request.messages:
            asked = {"messages": [dict(message) for message in request.messages]}
        body: dict[str, Any] = {
            "model": self.model.name,
            **asked,
            "stream": request.stream,
            "extra_headers": {"X-Request-Id": request.request_id},
        }
        further = dict(request.inputs)
        for name, value in request.options.items():
            key = BY_NAME[name].openai
            if name == "exclude_input":
                continue  # its answers never repeat the prompt
            if not key:
                raise InvalidRequest(
                    f"OpenAI's protocol has no key for {BY_NAME[name].flag}.", hint="leave it out"
                )
            (body if key in _STANDARD else further)[key] = int(value) if key == "logprobs" else value
        if request.stream:
            body["stream_options"] = {"include_usage": True}
        return body | ({"extra_body": further} if further else {})


@contextmanager
def _told(url: str, timeout_s: float) -> Iterator[None]:
    """Turn the library's errors into ours."""
    import openai

    try:
        yield
    except openai.APITimeoutError:
        raise AnswerTimedOut(
            f"{url} did not answer within {timeout_s:g} s.", hint="give it longer: --timeout-seconds"
        ) from None
    except openai.APIStatusError as error:
        kind = ServerUnreachable if error.status_code in (502, 503) else RequestFailed
        raise kind(f"{url} answered {error.status_code}: {error.message}") from error
    except openai.APIConnectionError as error:
        raise ServerUnreachable(f"{url} cannot be reached: {error.__cause__ or error}") from error
    except (openai.OpenAIError, AttributeError, TypeError, ValueError) as error:
        # The library takes any JSON for an answer.
        raise RequestFailed(f"{url} answered what cannot be read: {error}") from error


async def _whole(created: Any) -> AsyncGenerator[Any]:
    yield created


def _text(choice: Any) -> str:
    """The text of a choice, of completions or of a chat, as a whole or in a stream."""
    if hasattr(choice, "text"):
        return choice.text or ""
    message = choice.delta if hasattr(choice, "delta") else choice.message
    return (message.content or "") if message is not None else ""


def _outputs(text: str, prompt: int, sequence: int) -> Outputs:
    return {
        TEXT_OUTPUT: np.array([text], dtype=np.object_),
        "batch_index": np.array([prompt]),
        "sequence_index": np.array([sequence]),
    }


@dataclass
class _Details:
    """What the server says of an answer besides its text."""

    tokens: int | None = None
    log_probs: list[float] = field(default_factory=list)

    def add(self, part: Any) -> None:
        """Take in a response."""
        if part.usage is not None:
            self.tokens = part.usage.completion_tokens
        for choice in part.choices:
            if choice.index == 0 and getattr(choice.logprobs, "token_logprobs", None):
                self.log_probs.extend(it for it in choice.logprobs.token_logprobs or () if it is not None)

    def added(self, answer: Answer, count: int) -> Answer:
        """Return the answer with them; tokens of a batch are only known together."""
        if answer.log_probs is not None:
            answer = replace(answer, log_probs=tuple(self.log_probs))
        if self.tokens is None or count > 1 or len(answer.texts) > 1:
            return answer
        return replace(answer, output_tokens=self.tokens, counted_by="server")
