"""Answers and errors of OpenAI's protocol, as plain JSON types."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_hpc.errors import AnswerTimedOut, InvalidRequest, RequestFailed, RequestRefused, ServerUnreachable

Json = dict[str, Any]

_QUEUE_WORDS = "maximum queue size"
"""Words in the messages of TensorRT-LLM, Triton and the reference backend for a full queue, in lower case."""
_FAULT_WORDS = re.compile("forwardasync|cuda|out of memory|stub process|not loaded|not ready|unhealthy")
"""Words in messages about faults of the server, not the request: Triton's streams send no codes."""


class ApiError(Exception):
    """An error that becomes an answer: ``param`` is the wrong key, ``code`` OpenAI's short name, if any."""

    def __init__(
        self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code

    def body(self) -> Json:
        """Return the body of the answer."""
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        kinds = {404: "not_found_error", 429: "rate_limit_error", 504: "timeout_error"}
        kind = kinds.get(self.status, usual)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def as_api_error(error: ApiError | RequestFailed) -> ApiError:
    """Return the answer to a failed request, without hints, which name this package's own options."""
    if isinstance(error, ApiError):
        return error
    message, words = error.message, error.message.lower()
    if isinstance(error, InvalidRequest):
        return ApiError(message)
    if isinstance(error, ServerUnreachable):
        return ApiError(message, 503, code="server_unavailable")
    if isinstance(error, AnswerTimedOut):
        return ApiError(message, 504)
    if _QUEUE_WORDS in words:
        # OpenAI's clients retry after this status.
        return ApiError(message, 429, code="rate_limit_exceeded")
    if not isinstance(error, RequestRefused):
        return ApiError(message, 502)
    return ApiError(message, 500 if _FAULT_WORDS.search(words) else 400)


@dataclass(frozen=True)
class AnswerPart:
    """The next part of an answer."""

    text: str = ""
    count: int = 0
    """Number of tokens of the part."""
    finish: Literal["stop", "length"] | None = None
    """Why the answer has ended; ``None`` while it continues."""

    def __add__(self, more: AnswerPart) -> AnswerPart:
        """Return both parts as one."""
        return AnswerPart(self.text + more.text, self.count + more.count, more.finish)


class AnswerWriter:
    """Writes the answer to a request, whole or as the chunks of a stream."""

    def __init__(self, model: str, *, is_chat: bool) -> None:
        kind, prefix = ("chat.completion", "chatcmpl") if is_chat else ("text_completion", "cmpl")
        self._is_chat = is_chat
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._kind, self._chunk_kind = kind, f"{kind}.chunk" if is_chat else kind
        self._begun: set[int] = set()
        """Numbers of the choices that already have a chunk."""

    def whole(self, answers: Sequence[AnswerPart], usage: Json) -> Json:
        """Return all choices as one answer."""
        choices = []
        for index, part in enumerate(answers):
            message = {"role": "assistant", "content": part.text, "refusal": None}
            choices.append(
                _choice(index, part, {"message": message} if self._is_chat else {"text": part.text})
            )
        return {**self._head, "object": self._kind, "choices": choices, "usage": usage}

    def chunk(self, index: int, part: AnswerPart) -> Json:
        """Return the next chunk of a choice; the first chunk of a chat names the role."""
        content: Json = {"text": part.text}
        if self._is_chat:
            delta = {} if index in self._begun else {"role": "assistant"}
            content = {"delta": {**delta, "content": part.text} if delta or part.text else {}}
        self._begun.add(index)
        return {**self._head, "object": self._chunk_kind, "choices": [_choice(index, part, content)]}

    def last(self, usage: Json) -> Json:
        """Return the chunk with the usage of the whole request."""
        return {**self._head, "object": self._chunk_kind, "choices": [], "usage": usage}


def _choice(index: int, part: AnswerPart, content: Json) -> Json:
    return {"index": index, **content, "logprobs": None, "finish_reason": part.finish}


def usage(prompt_tokens: int, answer_tokens: int) -> Json:
    """Return the number of tokens of a request."""
    total = prompt_tokens + answer_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": answer_tokens, "total_tokens": total}
