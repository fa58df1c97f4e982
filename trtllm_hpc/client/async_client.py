"""The client: asks a served model, any number of requests at once, and puts the responses together."""

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
    """One text of an answer, or its token ids, as far as it has come."""

    text: str = ""
    shown: int = 0
    """Letters that :meth:`new` has returned."""
    ids: list[int] = field(default_factory=list)
    tokens: int | None = None
    """As the server counts them."""
    log_probs: list[float] = field(default_factory=list)
    """Of each token, if asked for."""
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    """A letter of several bytes may arrive in two responses."""

    def add(self, part: Part, *, repeats: bool) -> None:
        """Take in what has come; with ``repeats`` its text begins with the text before."""
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
        """Return what has come since the last call; a letter that may yet become another one is held back."""
        self.text += self.decoder.decode(b"", is_end)
        is_certain = is_end or not repeats
        end = len(self.text if is_certain else self.text.rstrip("\N{REPLACEMENT CHARACTER}"))
        text = self.text[self.shown : end]
        self.shown = max(self.shown, end)
        return text


class Collector:
    """The responses to one request of a model.

    ``responses`` is the number of those with output, ``new`` what the last one added to the first text.
    """

    def __init__(self, model: ServedModel, request: Request, protocol: str) -> None:
        self._model, self._request, self._protocol = model, request, protocol
        self._repeats = model.accumulates and request.stream
        self._texts: dict[tuple[int, int], CollectedText] = {}
        """By the indices of sequence and beam."""
        self._usage: Usage | None = None
        self._logits: Mapping[str, Any] = {}
        self._started = time.monotonic()
        self._first_text_s: float | None = None
        self.responses = 0
        self.new = ""

    @property
    def first(self) -> CollectedText | None:
        """The first text; ``None`` before it has begun."""
        return self._texts.get((0, 0))

    def add(self, response: Response) -> None:
        """Take in a response."""
        for part in response.parts:
            text = self._texts.setdefault(part.place, CollectedText())
            text.add(part, repeats=self._repeats)
            if part.log_probs:
                # Triton repeats those of the tokens before.
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
        """Put what was held back of the first text into ``new``, after the last response."""
        ends = {key: text.new(repeats=self._repeats, is_end=True) for key, text in self._texts.items()}
        self.new = ends.get((0, 0), "")

    def answer(self, *, is_stopped: bool) -> Answer:
        """Return the answer. Raises RequestFailed if there is none, unless the request was ended early."""
        texts = [self._texts[key] for key in sorted(self._texts)]
        takes_text = self._model.takes_text
        if not (texts or is_stopped):
            what = "a text" if takes_text else "token ids"
            raise RequestFailed(f"Model {self._model.name!r} answered without {what}.")
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
        # The tokens of several texts are only known together.
        if self._usage is not None and len(texts) == 1 and self._usage.output_tokens is not None:
            return self._usage.output_tokens, "server"
        if texts and texts[0].log_probs and self._request.options.get("log_probs"):
            return len(texts[0].log_probs), "server"
        return (self.responses, "responses") if self._request.stream and self.responses else (None, None)


Item = TypeVar("Item")

_FIRST_PAUSE_S = 0.25
"""Before a request is sent again; twice as long each time."""

_SETTINGS = frozenset({"inputs", "adapter", "timeout_s", "retries", "request_id", "session"})
"""Fields of a request that are no options of the model, and the name of its conversation (``session``)."""


class AsyncClient:
    """Asks one served model with asyncio; a context manager, which opens and closes its connection.

    ``target`` is a run's endpoint or another server's address, whose URL says its protocol. By default the
    ``model`` is ``ensemble``, or the first that takes text. ``timeout_s`` is for each request; one is sent
    again up to ``retries`` times if nothing of the answer had come, where ``follow`` says that the server is
    then.
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
            raise TypeError(f"{target!r} is not an endpoint or an address: of a run, call run.client()")
        self._target = target
        self._follow = follow
        self._moving = asyncio.Lock()
        self._connections: list[Connection] = []
        """The open one, last, and those to places that the server has left: open requests use them."""
        self._name = model
        self._protocol = protocol
        self._timeout_s = timeout_s
        self._retries = retries

    async def __aenter__(self) -> AsyncClient:
        """Open the connection; raises RequestFailed if the server does not answer, or has no such model."""
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
        """Its inputs, and what it can do."""
        return self._open.model

    @property
    def can_stream(self) -> bool:
        """Whether the model answers token by token."""
        return self._open.can_stream

    async def generate(self, prompt: Prompt, **options: Any) -> Answer:
        """Return the whole answer to a prompt, without the prompt where the model can leave it out.

        Args:
            prompt: a text, or token ids for a model that takes them.
            options: of the request, named as in docs/how-to/client.md with underscores: ``max_tokens=64``.
                Besides, these fields of :class:`Request`: ``inputs``, ``adapter``, ``timeout_s``,
                ``retries``, ``request_id``; and ``session``, the name of a conversation, which the proxy
                keeps at one instance (``serve.routing``).

        Raises:
            InvalidRequest: the model has no input for an option, or a value does not fit.
            ServerUnreachable, AnswerTimedOut: the server was not reached, or too slow.
            RequestFailed: the server says why.
        """
        return await self.ask(self.request(prompt, options))

    async def stream(self, prompt: Prompt, **options: Any) -> AsyncGenerator[str]:
        """Yield the text of an answer as it is generated; closing the generator ends it on the server.

        From models that do not stream the text comes as a whole.
        Arguments and errors are those of :meth:`generate`.
        """
        request = replace(self.request(prompt, options), stream=self.can_stream)
        async with aclosing(self.collected(request)) as collecting:
            async for found in collecting:
                if found.new:
                    yield found.new
        found.answer(is_stopped=False)  # raises if there is none

    async def chat(
        self, messages: Sequence[Message], *, on_text: OnText | None = None, **options: Any
    ) -> Answer:
        """Return the answer to the messages of a chat, over OpenAI's protocol.

        Args:
            messages: ``{"role": "system", "content": "..."}``, ``user`` and ``assistant`` likewise.
            on_text: called with each part of the answer as it comes; without it the answer comes as a whole.

        Other arguments and errors are those of :meth:`generate`. Without ``max_tokens`` the server says how
        long an answer may be. Raises InvalidRequest over another protocol, or if there is no message.
        """
        request = self.request("", options)
        given = {name: value for name, value in request.options.items() if name in options}
        request = replace(request, options=given, stream=on_text is not None)
        return await self.ask(chat_request(messages, request), on_text)

    async def batch(self, prompts: Sequence[Prompt], *, concurrency: int = 8, **options: Any) -> list[Answer]:
        """Return the answers to several prompts, in their order; after an error the others are ended.

        ``concurrency`` requests are open at once. Other arguments and errors are those of :meth:`generate`.
        """
        slots = asyncio.Semaphore(concurrency)

        async def answered(prompt: Prompt) -> Answer:
            async with slots:
                return await self.generate(prompt, **options)

        return await gathered([answered(prompt) for prompt in prompts])

    def request(self, prompt: Prompt, options: Mapping[str, Any]) -> Request:
        """Return a request with the client's own time limit and retries, for an answer without the prompt.

        Raises TypeError for an unknown option.
        """
        unknown = [name for name in options if name not in BY_NAME and name not in _SETTINGS]
        if unknown:
            raise TypeError(f"no option of a request is called {unknown[0]!r}: {', '.join(BY_NAME)}")
        given: dict[str, Any] = {"max_tokens": MAX_TOKENS}
        if BY_NAME["exclude_input"].input_of(self.model):
            given["exclude_input"] = True
        given |= {name: value for name, value in options.items() if name in BY_NAME and value is not None}
        settings = {name: value for name, value in options.items() if name in _SETTINGS}
        if (session := settings.pop("session", None)) is not None:
            settings["headers"] = {SESSION_HEADER: session}
        return Request(prompt, given, **{"timeout_s": self._timeout_s, "retries": self._retries, **settings})

    async def ask(
        self, request: Request, on_text: OnText | None = None, ended: asyncio.Event | None = None
    ) -> Answer:
        """Send a request, and return its answer; raises as :meth:`generate`.

        ``on_text`` is called with each part of the first text; ``ended`` ends the answer early, once set.
        """
        if request.messages and self._open.protocol != "openai":
            raise InvalidRequest(
                "A chat needs OpenAI's protocol, and this server is asked over Triton's.",
                hint='from Python run.client(protocol="openai"), on the command line --url http://HOST:PORT/v1',
            )

        ended = ended or asyncio.Event()
        async with aclosing(self.collected(request, ended)) as collecting:
            async for found in collecting:
                if on_text is not None and found.new:
                    on_text(found.new)
        return found.answer(is_stopped=ended.is_set())

    async def collected(
        self, request: Request, ended: asyncio.Event | None = None
    ) -> AsyncGenerator[Collector]:
        """Yield what has come of an answer, before and after each response and at its end.

        Closing the generator ends the request on the server. A request is sent again, where the server is
        then, if nothing of the answer has come. Raises as :meth:`generate`.
        """
        ended, pause_s, left = ended or asyncio.Event(), _FIRST_PAUSE_S, request.retries
        while True:
            found = Collector(self.model, request, self._open.protocol)
            has_begun = False
            yield found
            try:
                async with aclosing(self._open.responses(request, ended)) as responses:
                    async for response in responses:
                        has_begun = True
                        found.add(response)
                        yield found
                found.end()
                yield found
                return
            except ServerUnreachable:
                if not left or has_begun or ended.is_set():
                    raise
            left -= 1
            if self._follow is not None:
                async with self._moving:
                    target = await asyncio.to_thread(self._follow)
                    if target != self._target:  # other requests may use the old connection
                        opened = await connect(target, self._name, self._protocol, self._timeout_s)
                        self._connections.append(opened)
                        self._target = target
            await asyncio.sleep(pause_s)
            pause_s *= 2


def chat_request(messages: Sequence[Message], request: Request) -> Request:
    """Return a request as one of a chat; raises InvalidRequest if there is no message."""
    if not messages:
        raise InvalidRequest("A chat needs a message.")
    return replace(request, prompt=str(messages[-1].get("content", "")), messages=tuple(messages))


async def gathered(work: Sequence[Awaitable[Item]]) -> list[Item]:
    """Await all; after an error, or when nobody waits any more, the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
