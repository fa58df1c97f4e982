"""Requests to a server with OpenAI's completions, such as ``trtllm-serve`` or vLLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from trtllm_hpc.client.model import Ending, Model, until_ended
from trtllm_hpc.client.options import BY_NAME
from trtllm_hpc.client.over_http import HttpServer
from trtllm_hpc.client.request import Request
from trtllm_hpc.errors import InvalidRequest, RequestFailed
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire import openai
from trtllm_hpc.wire.events import Event
from trtllm_hpc.wire.response import Part, Response, WrongResponse
from trtllm_hpc.wire.served_model import ServedModel


class OpenAIModel(Model):
    """One model of a server with OpenAI's protocol, for any number of requests at once."""

    protocol = "openai"

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        super().__init__(ServedModel(model, {"text_input": ""}, decoupled=True), can_stream=True)
        self._url = endpoint.openai_url
        self._server = HttpServer(endpoint, trust_env=not endpoint.job_id)

    async def close(self) -> None:
        """End the connections."""
        await self._server.close()

    async def responses(self, request: Request, ending: Ending | None) -> AsyncGenerator[Response]:
        """Yield each response; see :meth:`Model.responses`."""
        url = f"{self._url}/{openai.CHAT_PATH if request.messages else openai.COMPLETIONS_PATH}"
        body, headers = self._body(request), {"X-Request-Id": request.request_id}
        events = self._server.events(url, body, request, stream=request.stream, headers=headers)
        is_complete = not request.stream
        async with aclosing(until_ended(events, ending)) as bounded:
            async for event in bounded:
                if event.data == openai.DONE:
                    is_complete = True
                    continue
                response = _parsed(url, event)
                is_complete = is_complete or response.is_last
                yield replace(response, parts=[_placed(part, request) for part in response.parts])
        if not (is_complete or (ending is not None and ending.has_come)):
            raise RequestFailed(f"{url}: {openai.INCOMPLETE}.")

    def _body(self, request: Request) -> bytes:
        """Return the request's body. Raises InvalidRequest if the protocol has no key for an option."""
        if request.logits or request.adapter is not None:
            raise InvalidRequest("OpenAI's protocol has neither logits nor LoRA adapters by their weights.")
        if request.messages and request.options.get("log_probs"):
            raise InvalidRequest("A chat has no --log-probs here.", hint="ask without --chat")
        options: dict[str, Any] = dict(request.inputs)
        for name, value in request.options.items():
            key = BY_NAME[name].openai
            if name == "exclude_input":
                continue  # its answers never repeat the prompt
            if not key:
                message = f"OpenAI's protocol has no key for {BY_NAME[name].flag}."
                raise InvalidRequest(message, hint="leave it out")
            options[key] = int(value) if key == "logprobs" else value
        prompts = [prompt if isinstance(prompt, str) else list(prompt) for prompt in request.prompts]
        return openai.encode_request(
            self.model.name,
            prompts[0] if len(prompts) == 1 else prompts,
            messages=request.messages,
            stream=request.stream,
            options=options,
        )


def _placed(part: Part, request: Request) -> Part:
    """Return a choice with the indices of its prompt, and of its sequence among the prompt's."""
    prompt, sequence = divmod(part.sequence_index, request.options.get("return_sequences", 1))
    return part._replace(prompt_index=prompt, sequence_index=sequence)


def _parsed(url: str, event: Event) -> Response:
    if (error := openai.event_error(event)) is not None:
        raise RequestFailed(f"{url} failed: {error}")
    try:
        return openai.parse_response(event.data)
    except WrongResponse as wrong:
        raise RequestFailed(f"{url} answered with {wrong}.") from None
