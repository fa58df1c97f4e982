"""OpenAI's answers and errors as a server writes them: plain JSON types."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtllm_hpc.errors import AnswerTimedOut, InvalidRequest, RequestFailed, RequestRefused, ServerUnreachable

Finish = Literal["stop", "length"]
Json = dict[str, Any]

_QUEUE_WORDS = "maximum queue size"
"""In messages of TensorRT-LLM, Triton and the reference backend for a full queue, in lower case."""
_FAULT_WORDS = (
    *("forwardasync", "cuda", "out of memory", "stub process", "not loaded", "not ready", "unhealthy"),
)
"""In messages about the server and not the request: Triton's streams send no codes."""
_LENGTH_WORDS = re.compile(
    r"exceeds maximum input length \((\d+)\)|was built for max_(?:input|seq)_len (\d+)"
)
"""In messages of TensorRT-LLM and the reference backend, which alone know how long prompts may be."""


class ApiError(Exception):
    """An error to answer with: ``param`` is the wrong key, ``code`` OpenAI's short name, if any."""

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


def too_long(limit: int | str, rest: str, param: str | None = None) -> ApiError:
    """Return the refusal of a long prompt; clients such as LiteLLM know it by OpenAI's first words."""
    message = f"This model's maximum context length is {limit} tokens{rest}"
    return ApiError(message, param=param, code="context_length_exceeded")


def as_api_error(error: ApiError | RequestFailed) -> ApiError:
    """Return the answer to a failed request, without hints: these name our own options."""
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
        # OpenAI's clients retry this status by themselves.
        return ApiError(message, 429, code="rate_limit_exceeded")
    if not isinstance(error, RequestRefused):
        return ApiError(message, 502)
    if limit := _LENGTH_WORDS.search(message):
        return too_long(limit[1] or limit[2], f". {message}")
    return ApiError(message, 500 if any(word in words for word in _FAULT_WORDS) else 400)


@dataclass(frozen=True)
class Token:
    """A generated token decoded by itself, and the natural logarithm of its probability."""

    text: str
    log_prob: float


@dataclass(frozen=True)
class Part:
    """The next part of one answer."""

    text: str = ""
    count: int = 0
    """Number of its tokens."""
    tokens: tuple[Token, ...] = ()
    """These tokens, if the request asks for their probabilities."""
    finish: Finish | None = None
    """Why the answer has ended; ``None`` while it goes on."""

    def __add__(self, more: Part) -> Part:
        """Return both parts as one."""
        tokens = self.tokens + more.tokens
        return Part(self.text + more.text, self.count + more.count, tokens, more.finish)


class AnswerWriter:
    """Writes the answer to one request, whole or as the chunks of a stream."""

    def __init__(self, model: str, *, is_chat: bool) -> None:
        kind, prefix = ("chat.completion", "chatcmpl") if is_chat else ("text_completion", "cmpl")
        self._is_chat = is_chat
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._kind, self._chunk_kind = kind, f"{kind}.chunk" if is_chat else kind
        self._offsets: dict[int, int] = {}
        """Number of letters of each choice whose tokens were written."""

    def whole(self, answers: Sequence[Part], usage: Json) -> Json:
        """Return all choices as one answer."""
        choices = [self._choice(index, part, is_whole=True) for index, part in enumerate(answers)]
        return {**self._head, "object": self._kind, "choices": choices, "usage": usage}

    def chunk(self, index: int, part: Part) -> Json:
        """Return the next part of a choice; a chat's first names the role."""
        return {**self._head, "object": self._chunk_kind, "choices": [self._choice(index, part)]}

    def last(self, usage: Json) -> Json:
        """Return the chunk with the usage of the whole request."""
        return {**self._head, "object": self._chunk_kind, "choices": [], "usage": usage}

    def _choice(self, index: int, part: Part, *, is_whole: bool = False) -> Json:
        is_first = index not in self._offsets
        offset = self._offsets.setdefault(index, 0)
        self._offsets[index] += sum(len(token.text) for token in part.tokens)
        content: Json = {"text": part.text}
        if self._is_chat and is_whole:
            content = {"message": {"role": "assistant", "content": part.text, "refusal": None}}
        elif self._is_chat:
            role = {"role": "assistant"} if is_first else {}
            content = {
                "delta": {**role, "content": part.text} if role or part.text or not part.finish else {}
            }
        log_probs = None
        if part.tokens:
            log_probs = _chat_log_probs(part) if self._is_chat else _log_probs(part, offset)
        return {"index": index, **content, "logprobs": log_probs, "finish_reason": part.finish}


def _log_probs(part: Part, offset: int) -> Json:
    texts, offsets = [token.text for token in part.tokens], []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    log_probs = [token.log_prob for token in part.tokens]
    return {"text_offset": offsets, "token_logprobs": log_probs, "tokens": texts, "top_logprobs": None}


def _chat_log_probs(part: Part) -> Json:
    content = [
        {
            "token": token.text,
            # A token can be part of a UTF-8 character, so its bytes cannot be recovered from its text.
            "bytes": None if "\N{REPLACEMENT CHARACTER}" in token.text else list(token.text.encode()),
            "logprob": token.log_prob,
            "top_logprobs": [],
        }
        for token in part.tokens
    ]
    return {"content": content, "refusal": None}


def usage(prompt_tokens: int, answer_tokens: int) -> Json:
    """Return the number of tokens of a request."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": answer_tokens,
        "total_tokens": prompt_tokens + answer_tokens,
    }
