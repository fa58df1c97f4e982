"""The client: asks a served model, any number of requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from trtllm_hpc.client.connect import Address, Protocol, Target, connect
from trtllm_hpc.client.model import Ending, Model, gathered
from trtllm_hpc.client.options import BY_NAME
from trtllm_hpc.client.over_grpc import GrpcServer
from trtllm_hpc.client.reply import Reply
from trtllm_hpc.client.request import MAX_TOKENS, RETRIES, TIMEOUT_S, Answer, Message, OnText, Prompt, Request
from trtllm_hpc.client.triton_model import TritonModel
from trtllm_hpc.errors import InvalidRequest, ServerUnreachable
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.served_model import ServedModel

_FIRST_PAUSE_S = 0.25
"""Before a request is sent again; twice as long each time."""

_SETTINGS = frozenset(
    {"inputs", "logits", "adapter", "stop_after_s", "timeout_s", "retries", "request_id", "session"}
)
"""Fields of a request that are no options of the model."""


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
        self._models: list[Model] = []
        """The open model, last, and those at places that the server has left: open requests use them."""
        self._name = model
        self._protocol = protocol
        self._timeout_s = timeout_s
        self._retries = retries
        self._ends: dict[str, asyncio.Event] = {}

    async def __aenter__(self) -> AsyncClient:
        """Open the connection; raises RequestFailed if the server does not answer, or has no such model."""
        self._models.append(await connect(self._target, self._name, self._protocol, self._timeout_s))
        return self

    async def __aexit__(self, *_: object) -> None:
        models, self._models = self._models, []
        for model in models:
            await model.close()

    @property
    def model(self) -> ServedModel:
        """Its inputs, and what it can do."""
        return self._open.model

    @property
    def can_stream(self) -> bool:
        """Whether the model answers token by token."""
        return self._open.can_stream

    @property
    def can_tokenize(self) -> bool:
        """Whether the server turns texts into token ids and back for a model that takes ids."""
        return self._open.can_tokenize

    @property
    def is_openai(self) -> bool:
        """Whether it asks over OpenAI's protocol."""
        return self._open.protocol == "openai"

    @property
    def _open(self) -> Model:
        if not self._models:
            raise RuntimeError("the client is not open: use it as a context manager")
        return self._models[-1]

    async def generate(self, prompt: Prompt, **options: Any) -> Answer:
        """Return the whole answer to a prompt, without the prompt where the model can leave it out.

        Args:
            prompt: a text, or token ids for a model that takes them.
            options: of the request, named as in docs/how-to/client.md with underscores: ``max_tokens=64``.
                Besides, these fields of :class:`Request`: ``inputs``, ``logits``, ``adapter``,
                ``stop_after_s``, ``timeout_s``, ``retries``, ``request_id``, ``session``.

        Raises:
            InvalidRequest: the model has no input for an option, or a value does not fit.
            ServerUnreachable, AnswerTimedOut: the server was not reached, or too slow.
            RequestFailed: the server says why.
        """
        request = self.request((prompt,), options)
        [answer] = await self.count_tokens(request, await self.ask(request))
        return answer

    async def stream(self, prompt: Prompt, **options: Any) -> AsyncGenerator[str]:
        """Yield the text of an answer as it is generated; closing the generator ends it on the server.

        From models that do not stream the text comes as a whole.
        Arguments and errors are those of :meth:`generate`.
        """
        parts: asyncio.Queue[str | None] = asyncio.Queue()
        request = replace(self.request((prompt,), options), stream=self.can_stream)
        asking = asyncio.ensure_future(self.ask(request, parts.put_nowait))
        asking.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            while (part := await parts.get()) is not None:
                yield part
            await asking
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({asking})

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        on_text: OnText | None = None,
        ended: asyncio.Event | None = None,
        **options: Any,
    ) -> Answer:
        """Return the answer to the messages of a chat, over OpenAI's protocol.

        Args:
            messages: ``{"role": "system", "content": "..."}``, ``user`` and ``assistant`` likewise.
            on_text: called with each part of the answer as it comes; without it the answer comes as a whole.
            ended: ends the answer early, once set.

        Other arguments and errors are those of :meth:`generate`. Without ``max_tokens`` the server says how
        long an answer may be. Raises InvalidRequest over another protocol, or if there is no message.
        """
        request = self.request((), options)
        given = {name: value for name, value in request.options.items() if name in options}
        request = replace(request, options=given, stream=on_text is not None)
        [answer] = await self.ask(chat_request(messages, request), on_text, ended)
        return answer

    async def batch(
        self, prompts: Sequence[Prompt], *, concurrency: int = 8, together: bool = False, **options: Any
    ) -> list[Answer]:
        """Return the answers to several prompts, in their order; after an error the others are ended.

        ``concurrency`` requests are open at once; with ``together`` all prompts are one request, a batch.
        Other arguments and errors are those of :meth:`generate`.
        """
        if together:
            request = self.request(tuple(prompts), options)
            return await self.count_tokens(request, await self.ask(request))
        slots = asyncio.Semaphore(concurrency)

        async def answered(prompt: Prompt) -> Answer:
            async with slots:
                return await self.generate(prompt, **options)

        return await gathered([answered(prompt) for prompt in prompts])

    async def cancel(self, request_id: str) -> None:
        """End the request with this id on the server; what it had generated by then is its answer.

        One that another client has sent is ended if its model takes such a message: ``ensemble``,
        ``tensorrt_llm`` and the LLM API's.
        """
        if request_id in self._ends:
            self._ends[request_id].set()
        else:
            await self._open.stop(request_id)

    def request(self, prompts: tuple[Prompt, ...], options: Mapping[str, Any]) -> Request:
        """Return a request with the client's own time limit and retries, for an answer without the prompt.

        Raises TypeError for an unknown option.
        """
        unknown = [name for name in options if name not in BY_NAME and name not in _SETTINGS]
        if unknown:
            raise TypeError(f"no option of a request is called {unknown[0]!r}: {', '.join(BY_NAME)}")
        given = {name: value for name, value in options.items() if name in BY_NAME and value is not None}
        defaults = {"max_tokens": MAX_TOKENS}
        if BY_NAME["exclude_input"].input_of(self.model):
            defaults["exclude_input"] = True
        given = {**defaults, **given}
        settings = {name: value for name, value in options.items() if name in _SETTINGS}
        return Request(prompts, given, **{"timeout_s": self._timeout_s, "retries": self._retries, **settings})

    async def ask(
        self, request: Request, on_text: OnText | None = None, ended: asyncio.Event | None = None
    ) -> tuple[Answer, ...]:
        """Send a request, and return the answer to each of its prompts; raises as :meth:`generate`.

        ``on_text`` is called with each part of the first text; ``ended`` ends the answers early, once set.
        """
        if request.messages and not self.is_openai:
            raise InvalidRequest(
                "A chat needs OpenAI's protocol, and this server is asked over Triton's.",
                hint='from Python run.client(protocol="openai"), on the command line --url http://HOST:PORT/v1',
            )

        def show(text: str) -> None:
            if on_text is not None and text:
                on_text(text)

        event = self._ends.setdefault(request.request_id, ended or asyncio.Event())
        ending = Ending(event, request.stop_after_s)
        try:
            async with aclosing(self._replies(request, ending)) as replies:
                async for reply in replies:
                    show(reply.new)
        finally:
            self._ends.pop(request.request_id, None)
        reply.end()
        show(reply.new)
        answers = [await self._open.decoded(answer) for answer in reply.answers(is_stopped=ending.has_come)]
        if not self.model.takes_text:
            show(answers[0].text)
        return tuple(answers)

    async def replies(self, request: Request) -> AsyncGenerator[Reply]:
        """Yield the reply to a request of token ids each time that a response has come.

        Closing the generator ends the request on the server. Raises as :meth:`generate`.
        """
        if self.is_openai:
            raise InvalidRequest("Token ids come from Triton only.")
        async with aclosing(self._replies(request, None)) as replies:
            async for reply in replies:
                if reply.responses:
                    yield reply

    async def _replies(self, request: Request, ending: Ending | None) -> AsyncGenerator[Reply]:
        """Yield the reply before and after each response.

        A request is sent again, where the server is then, if nothing of the answer has come.
        """
        pause_s, left = _FIRST_PAUSE_S, request.retries
        while True:
            reply = Reply(self.model, request, self._open.protocol)
            has_begun = False
            yield reply
            try:
                async with aclosing(self._open.responses(request, ending)) as responses:
                    async for response in responses:
                        has_begun = True
                        reply.add(response)
                        yield reply
                return
            except ServerUnreachable:
                if not left or has_begun or (ending is not None and ending.event.is_set()):
                    raise
            left -= 1
            await self._go_where_it_is()
            await asyncio.sleep(pause_s)
            pause_s *= 2

    async def is_ready(self, timeout_s: float) -> bool:
        """Return whether Triton says within this time that it is ready; asked over gRPC."""
        server = self._open.server if isinstance(self._open, TritonModel) else None
        return isinstance(server, GrpcServer) and await server.is_ready(timeout_s)

    async def _go_where_it_is(self) -> None:
        """Open a connection to the server's new place, if it has one; other requests may use the old."""
        if self._follow is None:
            return
        async with self._moving:
            target = await asyncio.to_thread(self._follow)
            if target == self._target:
                return
            self._models.append(await connect(target, self._name, self._protocol, self._timeout_s))
            self._target = target

    async def count_tokens(self, request: Request, answers: Sequence[Answer]) -> list[Answer]:
        """Have the served tokenizer count the tokens of answers whose server did not."""
        most = int(request.options.get("max_tokens", MAX_TOKENS))
        counted = list(answers)
        for place, (answer, prompt) in enumerate(zip(answers, request.prompts, strict=True)):
            if answer.counted_by == "server" or not isinstance(prompt, str) or not answer.text:
                continue
            # Special tokens, and the prompt if it is repeated, are in both texts. The tokenizer may read the
            # letters of some tokens as more tokens.
            whole = answer.text if answer.text.startswith(prompt) else prompt + answer.text
            if (counts := await self._open.count([whole, prompt])) is not None:
                tokens = min(max(counts[0] - counts[1], 0), most)
                counted[place] = replace(answer, output_tokens=tokens, counted_by="tokenizer")
        return counted


def chat_request(messages: Sequence[Message], request: Request) -> Request:
    """Return a request as one of a chat; raises InvalidRequest if there is no message."""
    if not messages:
        raise InvalidRequest("A chat needs a message.")
    return replace(request, prompts=(str(messages[-1].get("content", "")),), messages=tuple(messages))
