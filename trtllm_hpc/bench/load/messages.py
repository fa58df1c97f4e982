"""Serialise requests and parse replies.

Requests are serialised before the measurement and replies are parsed after it, so that neither delays a send.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trtllm_hpc.bench.records import OK
from trtllm_hpc.bench.workload.request import WorkloadRequest
from trtllm_hpc.client.request import BY_NAME
from trtllm_hpc.config.benchmark import OPENAI_PROTOCOLS, Protocol
from trtllm_hpc.runtime.records import SESSION_HEADER, Endpoint
from trtllm_hpc.wire import openai
from trtllm_hpc.wire.events import EventReader
from trtllm_hpc.wire.response import Response, Usage, WrongResponse
from trtllm_hpc.wire.served_model import ENSEMBLE, ServedModel
from trtllm_hpc.wire.triton import (
    ANSWER_OUTPUTS,
    Tensors,
    generate_body,
    generate_outputs,
    infer_outputs,
    infer_request,
    tensors,
    to_response,
)

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
COMPLETIONS, CHAT = "openai", "openai-chat"
"""Names of OpenAI's protocols in the settings."""


@dataclass(frozen=True)
class AskedEndpoint(Endpoint):
    """An endpoint whose requests have further headers."""

    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def authorization(self) -> dict[str, str]:
        """Headers of every call, in lower case for HTTP/2. Raises RequestFailed."""
        return super().authorization | {name.lower(): value for name, value in self.headers.items()}


@dataclass(frozen=True)
class Target:
    """A served model and the form of its requests; see :func:`trtllm_hpc.bench.targets.target_of`."""

    endpoint: Endpoint
    model: str
    served: ServedModel = ENSEMBLE
    """Triton: the model's inputs."""
    protocol: Protocol = "grpc"
    streaming: bool = False
    """Whether requests ask for streamed answers."""
    timeout_s: float = 60.0
    """Time limit of each request in seconds, from its send."""
    decoupled: bool = False
    """Whether the model can answer in several responses."""
    stream_input: str | None = None
    """Name of the input that makes a decoupled model stream tokens."""
    min_length_input: str | None = None
    """Name of the input for the minimum answer length (OpenAI: ``min_tokens``); ``None``: not sent."""
    max_tokens_key: str = "max_tokens"
    """OpenAI: body key for the most output tokens."""
    include_usage: bool = True
    """OpenAI: whether streams ask for the server's token count."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """OpenAI: further body keys, which override those from the settings."""

    @property
    def takes_token_ids(self) -> bool:
        """Whether the model accepts token IDs instead of text."""
        return not self.served.takes_text

    @property
    def is_openai(self) -> bool:
        """Whether the protocol is one of OpenAI's."""
        return self.protocol in OPENAI_PROTOCOLS

    @property
    def uses_stream_call(self) -> bool:
        """Whether gRPC needs ``ModelStreamInfer``: decoupled models refuse ``ModelInfer``."""
        return self.protocol == "grpc" and (self.streaming or self.decoupled)


def session_headers(session: str | None) -> dict[str, str]:
    """Return the headers (over gRPC, metadata) that name a request's conversation."""
    return {} if session is None else {SESSION_HEADER: session}


def encode_request(request: WorkloadRequest, target: Target, request_id: str = "") -> bytes:
    """Return a request in the target's protocol: a ``ModelInferRequest``, or a JSON body.

    Earlier messages of a conversation become messages of a chat, or lines of the prompt. Raises ValueError
    for a prompt that the model or the protocol does not accept.
    """
    prompt = list(request.token_ids or ()) if request.prompt is None else request.prompt
    if request.said and target.protocol != CHAT:
        prompt = "\n".join([*(message["content"] for message in request.said), request.prompt or ""])
    if target.is_openai:
        return _encode_openai(request, prompt, target)
    values = target.served.prompt_values(prompt) | _options(request, target)
    if target.protocol == "http":
        return generate_body(values)
    message = infer_request(target.model, tensors(target.served, values), request_id)
    return bytes(message.SerializeToString())


def _encode_openai(request: WorkloadRequest, prompt: str | list[int], target: Target) -> bytes:
    is_chat = target.protocol == CHAT
    if is_chat and request.prompt is None:
        raise ValueError("a chat accepts text, not token IDs")
    options: dict[str, Any] = {target.max_tokens_key: request.max_tokens}
    if target.min_length_input is not None:  # trtllm-serve and vLLM have these keys, OpenAI does not
        options |= {"min_tokens": request.max_tokens, "ignore_eos": True}
    options |= target.extra_body
    said = request.messages or [*(request.said or ()), {"role": "user", "content": prompt}]
    messages, stream, usage = said if is_chat else (), target.streaming, target.include_usage
    return openai.encode_request(
        target.model, prompt, messages=messages, stream=stream, include_usage=usage, options=options
    )


def _options(request: WorkloadRequest, target: Target) -> dict[str, Any]:
    """Return the inputs of Triton's models beside the prompt.

    There is no end token among them, so that a core model's answers have the requested length.
    """
    length = BY_NAME["max_tokens"].input_of(target.served) or "max_tokens"
    values: dict[str, Any] = {length: request.max_tokens}
    if target.min_length_input is not None:
        values[target.min_length_input] = request.max_tokens
    if target.streaming and target.decoupled and target.stream_input is not None:
        values[target.stream_input] = True
    return values


@dataclass(slots=True)
class LoadReply:
    """The raw reply to one request. Times are seconds on the measurement's clock."""

    index: int
    """Index of the request in the workload."""
    due_s: float
    """Due time; in a closed loop, the time at which the request's slot became free."""
    sent_s: float
    """Time right before the call."""
    ended_s: float
    """Arrival of the answer's last piece, or of the error."""
    status: str = OK
    """``ok``, or the error: a gRPC status code such as ``DEADLINE_EXCEEDED``, or ``HTTP 500``."""
    error: str | None = None
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    """Responses, or pieces of a stream over HTTP, with their times of arrival; one unless streamed."""
    session: str | None = None
    """Name of the request's conversation; ``None`` for a single request."""
    freed_s: float | None = None
    """In a closed loop: time at which the request's slot became free; ``None`` in an open loop."""
    free_s: float = -1.0
    """Over HTTP: time of the read that completed the answer and freed the connection."""

    @property
    def ok(self) -> bool:
        """Whether a complete answer arrived."""
        return self.status == OK

    @property
    def latency_s(self) -> float:
        """Latency from the due time, in seconds."""
        return self.ended_s - self.due_s


class Chunk(NamedTuple):
    """A response with output."""

    time_s: float
    text: str | None = None
    """Generated text, including reasoning."""
    token_ids: tuple[int, ...] | None = None
    """New token IDs of the first sequence."""
    thought: int = 0
    """Number of characters of reasoning at the beginning of the text."""


@dataclass(frozen=True)
class ParsedReply:
    """The answer to one request; empty if there is none."""

    chunks: tuple[Chunk, ...] = ()
    """Responses, without the empty end of a stream and, over OpenAI's protocol, without those that lack
    text."""
    streamed: bool = False
    usage: Usage | None = None
    """The server's token counts; ``None`` if the answer lacks them."""

    @property
    def text(self) -> str | None:
        """The whole text; ``None`` from a model that returns token IDs."""
        texts = [chunk.text for chunk in self.chunks if chunk.text is not None]
        return "".join(texts) if texts else None

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """All IDs in order, including a repeated prompt's; ``None`` from a text model."""
        parts = [chunk.token_ids for chunk in self.chunks if chunk.token_ids is not None]
        return tuple(token for part in parts for token in part) if parts else None


def parse_reply(reply: LoadReply, target: Target) -> ParsedReply:
    """Parse the responses to one request, without those that lack output or have an unknown format."""
    chunks, usage = list[Chunk](), None
    is_events = target.streaming and target.protocol != "grpc"
    for time_s, raw in timed_events(reply.chunks) if is_events else reply.chunks:
        try:
            if target.is_openai:
                response = openai.parse_response(raw)
            else:
                outputs = generate_outputs(raw) if target.protocol == "http" else _grpc_outputs(raw, target)
                response = to_response(outputs, takes_text=target.served.takes_text)
        except WrongResponse:
            continue
        usage = response.usage or usage
        if response.parts and (chunk := _chunk(time_s, response, target)) is not None:
            chunks.append(chunk)
    if target.streaming and target.served.accumulates:
        chunks = [chunk._replace(text=text) for chunk, text in zip(chunks, _added(chunks), strict=True)]
    return ParsedReply(tuple(chunks), target.streaming, usage)


def _added(chunks: Sequence[Chunk]) -> Iterator[str]:
    """Yield the new part of each accumulated text; a broken character at its end waits for the next text."""
    shown = 0
    for chunk in chunks:
        text = chunk.text or ""
        end = len(text) if chunk is chunks[-1] else len(text.rstrip(_REPLACEMENT))
        yield text[shown:end]
        shown = max(shown, end)


def answer_text(reply: LoadReply, target: Target) -> str:
    """Return the text of an answer without reasoning; it must be quick, because other requests are timed."""
    if target.protocol == CHAT and target.streaming:
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            return openai.answer_text(event for _, event in timed_events(reply.chunks))
    return "".join((chunk.text or "")[chunk.thought :] for chunk in parse_reply(reply, target).chunks)


def timed_events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Yield the data of a stream's events, each with the time of the piece that completed it."""
    reader, time_s = EventReader(), 0.0
    for time_s, piece in pieces:
        for event in reader.add(piece):
            yield time_s, event.data
    for event in reader.end():
        yield time_s, event.data


def _grpc_outputs(raw: bytes, target: Target) -> Tensors:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tritonclient.grpc import service_pb2

    try:
        if target.uses_stream_call:
            message = service_pb2.ModelStreamInferResponse.FromString(raw).infer_response
        else:
            message = service_pb2.ModelInferResponse.FromString(raw)
    except DecodeError:
        raise WrongResponse("not a message of Triton's service") from None
    return infer_outputs(message, ANSWER_OUTPUTS)


def _chunk(time_s: float, response: Response, target: Target) -> Chunk | None:
    """Return the first text or beam of a response; over OpenAI's protocol ``None`` if the text is empty."""
    part = response.parts[0]
    if part.ids is not None:
        return Chunk(time_s, token_ids=tuple(part.ids))
    text = part.text.decode("utf-8", errors="replace") if isinstance(part.text, bytes) else part.text or ""
    if not (text or part.thought or not target.is_openai):
        return None
    return Chunk(time_s, part.thought + text, thought=len(part.thought))
