"""The client: asks a served model, any number of requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

from trtllm_hpc.client.collect import Collector
from trtllm_hpc.client.connect import Address, Connection, Protocol, Target, connect
from trtllm_hpc.client.options import BY_NAME
from trtllm_hpc.client.request import MAX_TOKENS, RETRIES, TIMEOUT_S, Answer, Message, OnText, Prompt, Request
from trtllm_hpc.errors import InvalidRequest, ServerUnreachable
from trtllm_hpc.runtime.records import SESSION_HEADER, Endpoint
from trtllm_hpc.wire.served_model import ServedModel

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
            await self._go_where_it_is()
            await asyncio.sleep(pause_s)
            pause_s *= 2

    async def _go_where_it_is(self) -> None:
        """Open a connection to the server's new place, if it has one; other requests may use the old."""
        if self._follow is None:
            return
        async with self._moving:
            target = await asyncio.to_thread(self._follow)
            if target == self._target:
                return
            self._connections.append(await connect(target, self._name, self._protocol, self._timeout_s))
            self._target = target


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
