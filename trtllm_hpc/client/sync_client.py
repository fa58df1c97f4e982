"""The client without asyncio: the same calls, carried out in a thread of their own."""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.client.connect import Protocol, Target
from trtllm_hpc.client.request import RETRIES, TIMEOUT_S, Answer, Message, OnText, Prompt
from trtllm_hpc.wire.served_model import ServedModel

Result = TypeVar("Result")

_CLOSE_TIMEOUT_S = 5.0


class Client:
    """Asks one served model. Every method may be called from several threads at once.

    It is open from the start, and closed as a context manager, by :meth:`close`, or when Python exits.
    Arguments are those of :class:`trtllm_hpc.client.async_client.AsyncClient`. Raises RequestFailed if the
    server does not answer, or has no such model.
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
        self._client = AsyncClient(
            target, model, protocol=protocol, timeout_s=timeout_s, retries=retries, follow=follow
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trtllm-hpc client", daemon=True)
        self._thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:  # Ctrl-C while it connects must not leave the thread either
            self._end()
            raise
        _open_clients.add(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, and all open requests with it."""
        if self in _open_clients:
            _open_clients.discard(self)
            self._run(self._client.__aexit__())
            self._end()

    @property
    def model(self) -> ServedModel:
        """Its inputs, and what it can do."""
        return self._client.model

    def generate(self, prompt: Prompt, **options: Any) -> Answer:
        """Return the answer to a prompt as :meth:`AsyncClient.generate`; Ctrl-C ends it on the server."""
        return self._run(self._client.generate(prompt, **options))

    def stream(self, prompt: Prompt, **options: Any) -> Generator[str]:
        """Yield the text of an answer as it is generated; closing the generator ends it on the server.

        From models that do not stream the text comes as a whole.
        Arguments and errors are those of :meth:`generate`.
        """
        texts = self._client.stream(prompt, **options)

        async def following() -> str | None:
            return await anext(texts, None)

        try:
            while (text := self._run(following())) is not None:
                yield text
        finally:
            self._run(texts.aclose())

    def chat(self, messages: Sequence[Message], *, on_text: OnText | None = None, **options: Any) -> Answer:
        """Return the answer to the messages of a chat; see :meth:`AsyncClient.chat`.

        Ctrl-C ends it on the server. ``on_text`` is called in a thread of the client's.
        """
        return self._run(self._client.chat(messages, on_text=on_text, **options))

    def batch(self, prompts: Sequence[Prompt], *, concurrency: int = 8, **options: Any) -> list[Answer]:
        """Return the answers to several prompts, in their order; see :meth:`AsyncClient.batch`."""
        return self._run(self._client.batch(prompts, concurrency=concurrency, **options))

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Carry out work in the thread, and return its result; work whose wait is interrupted ends first."""
        ended = threading.Event()

        async def watched() -> Result:
            try:
                return await work
            finally:
                ended.set()

        task = asyncio.run_coroutine_threadsafe(watched(), self._loop)
        try:
            return task.result()
        except BaseException:  # Ctrl-C ends the request on the server, too
            if not task.done():
                task.cancel()
                ended.wait(_CLOSE_TIMEOUT_S)
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()


_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_clients() -> None:
    """An open connection would keep Python from exiting, or make it complain."""
    for client in list(_open_clients):
        client.close()
