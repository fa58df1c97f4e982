"""A served model over one connection, whatever its protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

from trtllm_hpc.client.early_end import Course
from trtllm_hpc.client.request import Answer, Request
from trtllm_hpc.wire.response import Response
from trtllm_hpc.wire.served_model import ServedModel


class Model(ABC):
    """One model of a server, for any number of requests at once.

    ``can_stream`` is whether it answers token by token, ``can_tokenize`` whether a model that takes token
    ids can be asked texts.
    """

    protocol: str
    can_tokenize = False

    def __init__(self, model: ServedModel, *, can_stream: bool) -> None:
        self.model = model
        self.can_stream = can_stream

    @abstractmethod
    async def close(self) -> None:
        """End the connection, and with it all open requests."""

    @abstractmethod
    def responses(self, request: Request, course: Course) -> AsyncGenerator[Response]:
        """Send a request and yield its responses; leaving the generator ends the request on the server.

        Raises InvalidRequest, RequestFailed.
        """

    async def stop(self, request_id: str) -> None:
        """End a request that another client has sent, if the protocol has such a call."""
        return

    async def count(self, texts: list[str]) -> list[int] | None:
        """Return the tokens of texts as the server counts them; ``None`` if it has no such call."""
        return None

    async def decoded(self, answer: Answer) -> Answer:
        """Return an answer of token ids with its texts, if the server can decode them."""
        return answer
