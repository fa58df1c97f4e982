"""The client without asyncio: the same calls, which run in a separate thread."""

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
    """A client of one served model, whose methods are thread-safe.

    The client connects at once. Leaving its context, :meth:`close`, or the exit of Python closes it.
    Arguments are those of :class:`trtllm_hpc.client.async_client.AsyncClient`. Raises RequestFailed if the
    server does not answer or lacks the model.
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
        except BaseException:  # including Ctrl-C, so that the thread always ends
            self._end()
            raise
        _open_clients.add(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, which ends all open requests."""
        if self in _open_clients:
            _open_clients.discard(self)
            self._run(self._client.__aexit__())
            self._end()

    @property
    def model(self) -> ServedModel:
        """The served model with its inputs and abilities."""
        return self._client.model

    def generate(self, prompt: Prompt, **options: Any) -> Answer:
        """Return the answer to a prompt like :meth:`AsyncClient.generate`; Ctrl-C ends it on the server."""
        return self._run(self._client.generate(prompt, **options))

    def stream(self, prompt: Prompt, **options: Any) -> Generator[str]:
        """Yield the text of an answer as it is generated; closing the generator ends it on the server.

        A model that does not stream yields one text. Arguments and errors are those of :meth:`generate`.
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

        Ctrl-C ends the request on the server. The client's thread calls ``on_text``.
        """
        return self._run(self._client.chat(messages, on_text=on_text, **options))

    def batch(self, prompts: Sequence[Prompt], *, concurrency: int = 8, **options: Any) -> list[Answer]:
        """Return the answers to several prompts, in order; see :meth:`AsyncClient.batch`."""
        return self._run(self._client.batch(prompts, concurrency=concurrency, **options))

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run work in the thread and return its result; an interrupted wait ends the work first."""
        ended = threading.Event()

        async def watched() -> Result:
            try:
                return await work
            finally:
                ended.set()

        task = asyncio.run_coroutine_threadsafe(watched(), self._loop)
        try:
            return task.result()
        except BaseException:  # including Ctrl-C, which must end the request on the server
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
    """Close all clients, because an open connection can keep Python from exiting."""
    for client in list(_open_clients):
        client.close()
