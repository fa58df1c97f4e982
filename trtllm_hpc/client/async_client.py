"""The asyncio client of a served model: sends concurrent requests and assembles their responses."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from trtllm_hpc.client.connect import Address, Connection, Protocol, Target, connect
from trtllm_hpc.client.request import (
    BY_NAME,
    MAX_TOKENS,
    RETRIES,
    TIMEOUT_S,
    Answer,
    Counted,
    Message,
    OnText,
    Prompt,
    Request,
)
from trtllm_hpc.errors import InvalidRequest, RequestFailed, ServerUnreachable
from trtllm_hpc.runtime.records import SESSION_HEADER, Endpoint
from trtllm_hpc.wire.response import Part, Response, Usage
from trtllm_hpc.wire.served_model import LOGITS_OUTPUTS, ServedModel


@dataclass
class CollectedText:
    """One text of an answer, or its token IDs, received so far."""

    text: str = ""
    shown: int = 0
    """Number of characters that :meth:`new` has returned."""
    ids: list[int] = field(default_factory=list)
    tokens: int | None = None
    """Number of tokens, as counted by the server."""
    log_probs: list[float] = field(default_factory=list)
    """Log probability of each token, if requested."""
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    """Decoder for characters whose bytes arrive in two responses."""

    def add(self, part: Part, *, repeats: bool) -> None:
        """Add a part of the answer; with ``repeats`` its text contains the earlier text."""
        value = part.text or ""
        if repeats:
            self.text = value if isinstance(value, str) else value.decode("utf-8", errors="replace")
        else:
            self.text += value if isinstance(value, str) else self.decoder.decode(value)
        if part.ids is not None:
            self.ids.extend(part.ids)
            self.tokens = len(self.ids)
        elif part.length is not None:
            self.tokens = part.length

    def new(self, *, repeats: bool, is_end: bool = False) -> str:
        """Return the text since the last call, without an incomplete character at its end."""
        self.text += self.decoder.decode(b"", is_end)
        is_certain = is_end or not repeats
        end = len(self.text if is_certain else self.text.rstrip("\N{REPLACEMENT CHARACTER}"))
        text = self.text[self.shown : end]
        self.shown = max(self.shown, end)
        return text


class Collector:
    """Assembles the responses to one request.

    ``responses`` counts responses with output; ``new`` is the text that the last one added to the first text.
    """

    def __init__(self, model: ServedModel, request: Request, protocol: str) -> None:
        self._model, self._request, self._protocol = model, request, protocol
        self._repeats = model.accumulates and request.stream
        self._texts: dict[tuple[int, int], CollectedText] = {}
        """Texts by indices of sequence and beam."""
        self._usage: Usage | None = None
        self._logits: Mapping[str, Any] = {}
        self._started = time.monotonic()
        self._first_text_s: float | None = None
        self.responses = 0
        self.new = ""

    @property
    def first(self) -> CollectedText | None:
        """The first text; ``None`` before it begins."""
        return self._texts.get((0, 0))

    def add(self, response: Response) -> None:
        """Add a response."""
        for part in response.parts:
            text = self._texts.setdefault(part.place, CollectedText())
            text.add(part, repeats=self._repeats)
            if part.log_probs:
                # Triton repeats the log probabilities of earlier tokens.
                before = text.log_probs if self._protocol == "openai" else []
                text.log_probs = [*before, *part.log_probs]
            if part.place == (0, 0):
                self._logits = response.logits
        self._usage = response.usage or self._usage
        self.responses += bool(response.parts)
        if self._request.stream and self._first_text_s is None and self.responses:
            self._first_text_s = time.monotonic() - self._started
        self.new = "" if self.first is None else self.first.new(repeats=self._repeats)

    def end(self) -> None:
        """Finish all texts after the last response; ``new`` is the rest of the first text."""
        ends = {key: text.new(repeats=self._repeats, is_end=True) for key, text in self._texts.items()}
        self.new = ends.get((0, 0), "")

    def answer(self, *, is_stopped: bool) -> Answer:
        """Return the answer. Raises RequestFailed if it is empty, unless the request was ended early."""
        texts = [self._texts[key] for key in sorted(self._texts)]
        takes_text = self._model.takes_text
        if not (texts or is_stopped):
            missing = "a text" if takes_text else "token IDs"
            raise RequestFailed(f"Model {self._model.name!r} answered without {missing}.")
        for name in LOGITS_OUTPUTS:
            if self._request.options.get(name) and name not in self._logits and not is_stopped:
                raise RequestFailed(f"Model {self._model.name!r} answered without {name}.")
        tokens, counted_by = self._counted(texts)
        asks_log_probs = self._request.options.get("log_probs")
        return Answer(
            protocol=self._protocol,
            text=texts[0].text if texts else "",
            latency_s=time.monotonic() - self._started,
            output_tokens=tokens,
            counted_by=counted_by,
            texts=tuple(text.text for text in texts) if takes_text else (),
            token_ids=() if takes_text else tuple(tuple(text.ids) for text in texts),
            first_text_s=self._first_text_s,
            is_stopped=is_stopped,
            log_probs=tuple(texts[0].log_probs if texts else ()) if asks_log_probs else None,
            responses=self.responses,
            request_id=self._request.request_id,
            logits=self._logits,
        )

    def _counted(self, texts: Sequence[CollectedText]) -> tuple[int | None, Counted | None]:
        if texts and texts[0].tokens is not None:
            return texts[0].tokens, "server"
        # usage has only the sum over several texts.
        if self._usage is not None and len(texts) == 1 and self._usage.output_tokens is not None:
            return self._usage.output_tokens, "server"
        if texts and texts[0].log_probs and self._request.options.get("log_probs"):
            return len(texts[0].log_probs), "server"
        return (self.responses, "responses") if self._request.stream and self.responses else (None, None)


Item = TypeVar("Item")

_FIRST_PAUSE_S = 0.25
"""Seconds before the first retry; each further pause is twice as long."""

_SETTINGS = frozenset({"inputs", "adapter", "timeout_s", "retries", "request_id", "session"})
"""Fields of a request that are not options of the model, and ``session``, its conversation."""


class AsyncClient:
    """An asyncio client of one served model: a context manager that opens and closes its connection.

    Args:
        target: a run's endpoint, or another server's address, whose URL has the protocol.
        model: by default ``ensemble``, or the first model that accepts text.
        timeout_s: time limit of each request.
        retries: how often a request is repeated if no part of its answer has arrived.
        follow: returns the server's current place before a retry.
    """

    def __init__(
        self,
        target: Target,
        model: str | None = None,
        *,
        protocol: Protocol | None = None,
        timeout_s: float = TIMEOUT_S,
        retries: int = RETRIES,
        follow: Callable[[], Target] | None = None,
    ) -> None:
        if not isinstance(target, Endpoint | Address):
            raise TypeError(f"{target!r} is neither an endpoint nor an address: for a run, call run.client()")
        self._target = target
        self._follow = follow
        self._moving = asyncio.Lock()
        self._connections: list[Connection] = []
        """Earlier connections, which open requests may still use, and the current one, last."""
        self._name = model
        self._protocol = protocol
        self._timeout_s = timeout_s
        self._retries = retries

    async def __aenter__(self) -> AsyncClient:
        """Open the connection. Raises RequestFailed if the server does not answer or lacks the model."""
        self._connections.append(await connect(self._target, self._name, self._protocol, self._timeout_s))
        return self

    async def __aexit__(self, *_: object) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            await connection.close()

    @property
    def _open(self) -> Connection:
        if not self._connections:
            raise RuntimeError("the client is not open: use it as a context manager")
        return self._connections[-1]

    @property
    def model(self) -> ServedModel:
        """The served model with its inputs and abilities."""
        return self._open.model

    @property
    def can_stream(self) -> bool:
        """Whether the model streams tokens."""
        return self._open.can_stream

    async def generate(self, prompt: Prompt, **options: Any) -> Answer:
        """Return the whole answer to a prompt, without the prompt if the model can leave it out.

        Args:
            prompt: a text, or token IDs for a model that accepts them.
            options: options of the request, as in docs/how-to/client.md but with underscores:
                ``max_tokens=64``. Also the fields ``inputs``, ``adapter``, ``timeout_s``, ``retries`` and
                ``request_id`` of :class:`Request`, and ``session``, the name of a conversation, which the
                proxy keeps at one instance (``serve.routing``).

        Raises:
            InvalidRequest: the model has no input for an option, or a value does not fit.
            ServerUnreachable, AnswerTimedOut: the server cannot be reached, or is too slow.
            RequestFailed: with the server's error message.
        """
        return await self.ask(self.request(prompt, options))

    async def stream(self, prompt: Prompt, **options: Any) -> AsyncGenerator[str]:
        """Yield the text of an answer as it is generated; closing the generator ends it on the server.

        A model that does not stream yields one text. Arguments and errors are those of :meth:`generate`.
        """
        request = replace(self.request(prompt, options), stream=self.can_stream)
        async with aclosing(self.collected(request)) as collecting:
            async for collector in collecting:
                if collector.new:
                    yield collector.new
        collector.answer(is_stopped=False)  # raises if the answer is empty

    async def chat(
        self, messages: Sequence[Message], *, on_text: OnText | None = None, **options: Any
    ) -> Answer:
        """Return the answer to the messages of a chat, over OpenAI's protocol.

        Args:
            messages: ``{"role": "system", "content": "..."}``, ``user`` and ``assistant`` likewise.
            on_text: called with each part of the answer; without it the answer is not streamed.

        Other arguments and errors are those of :meth:`generate`. Without ``max_tokens`` the server's default
        applies. Raises InvalidRequest over another protocol, or without messages.
        """
        request = self.request("", options)
        chosen = {name: value for name, value in request.options.items() if name in options}
        request = replace(request, options=chosen, stream=on_text is not None)
        return await self.ask(chat_request(messages, request), on_text)

    async def batch(self, prompts: Sequence[Prompt], *, concurrency: int = 8, **options: Any) -> list[Answer]:
        """Return the answers to several prompts, in order; an error ends all other requests.

        At most ``concurrency`` requests are open at a time. Other arguments and errors are those of
        :meth:`generate`.
        """
        slots = asyncio.Semaphore(concurrency)

        async def answered(prompt: Prompt) -> Answer:
            async with slots:
                return await self.generate(prompt, **options)

        return await gathered([answered(prompt) for prompt in prompts])

    def request(self, prompt: Prompt, options: Mapping[str, Any]) -> Request:
        """Return a request with the client's time limit and retries, whose answer leaves out the prompt.

        Raises TypeError for an unknown option.
        """
        unknown = [name for name in options if name not in BY_NAME and name not in _SETTINGS]
        if unknown:
            raise TypeError(f"unknown option {unknown[0]!r}; the options are {', '.join(BY_NAME)}")
        values: dict[str, Any] = {"max_tokens": MAX_TOKENS}
        if BY_NAME["exclude_input"].input_of(self.model):
            values["exclude_input"] = True
        values |= {name: value for name, value in options.items() if name in BY_NAME and value is not None}
        settings = {name: value for name, value in options.items() if name in _SETTINGS}
        if (session := settings.pop("session", None)) is not None:
            settings["headers"] = {SESSION_HEADER: session}
        return Request(prompt, values, **{"timeout_s": self._timeout_s, "retries": self._retries, **settings})

    async def ask(
        self, request: Request, on_text: OnText | None = None, ended: asyncio.Event | None = None
    ) -> Answer:
        """Send a request and return its answer; raises like :meth:`generate`.

        ``on_text`` is called with each part of the first text; setting ``ended`` ends the answer early.
        """
        if request.messages and self._open.protocol != "openai":
            raise InvalidRequest(
                "A chat needs OpenAI's protocol, but this connection has Triton's.",
                hint='from Python run.client(protocol="openai"), on the command line --url http://HOST:PORT/v1',
            )

        ended = ended or asyncio.Event()
        async with aclosing(self.collected(request, ended)) as collecting:
            async for collector in collecting:
                if on_text is not None and collector.new:
                    on_text(collector.new)
        return collector.answer(is_stopped=ended.is_set())

    async def collected(
        self, request: Request, ended: asyncio.Event | None = None
    ) -> AsyncGenerator[Collector]:
        """Yield the collected answer before the first response, after each response, and at the end.

        Closing the generator ends the request on the server. If no part of the answer has arrived, the
        request is repeated at the server's current place. Raises like :meth:`generate`.
        """
        ended, pause_s, left = ended or asyncio.Event(), _FIRST_PAUSE_S, request.retries
        while True:
            collector = Collector(self.model, request, self._open.protocol)
            has_begun = False
            yield collector
            try:
                async with aclosing(self._open.responses(request, ended)) as responses:
                    async for response in responses:
                        has_begun = True
                        collector.add(response)
                        yield collector
                collector.end()
                yield collector
                return
            except ServerUnreachable:
                if not left or has_begun or ended.is_set():
                    raise
            left -= 1
            if self._follow is not None:
                async with self._moving:
                    target = await asyncio.to_thread(self._follow)
                    if target != self._target:  # the old connection stays open for other requests
                        opened = await connect(target, self._name, self._protocol, self._timeout_s)
                        self._connections.append(opened)
                        self._target = target
            await asyncio.sleep(pause_s)
            pause_s *= 2


def chat_request(messages: Sequence[Message], request: Request) -> Request:
    """Return a request with the messages of a chat. Raises InvalidRequest without messages."""
    if not messages:
        raise InvalidRequest("A chat needs at least one message.")
    return replace(request, prompt=str(messages[-1].get("content", "")), messages=tuple(messages))


async def gathered(work: Sequence[Awaitable[Item]]) -> list[Item]:
    """Await all work; an error, or a cancellation, cancels the rest."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
