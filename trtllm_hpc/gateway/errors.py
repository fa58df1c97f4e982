"""OpenAI's error format, and the mapping from our errors to it."""

from __future__ import annotations

import re

from trtllm_hpc.errors import AnswerTimedOut, InvalidRequest, RequestFailed, RequestRefused, ServerUnreachable
from trtllm_hpc.wire.openai_answer import error_body

_QUEUE_WORDS = "maximum queue size"
"""In messages of TensorRT-LLM, Triton and the reference backend for a full queue, in lower case."""

_FAULT_WORDS = (
    "forwardasync",
    "cuda",
    "out of memory",
    "stub process",
    "not loaded",
    "not ready",
    "unhealthy",
)
"""In messages about the server and not the request: Triton's streams send no codes."""

_LENGTH_WORDS = re.compile(
    r"exceeds maximum input length \((\d+)\)|was built for max_(?:input|seq)_len (\d+)"
)
"""In messages of TensorRT-LLM and the reference backend, which alone know how long prompts may be."""


class ApiError(Exception):
    """An error for an answer; ``param`` is the key that is wrong, ``code`` OpenAI's short name, if any."""

    def __init__(
        self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code

    def body(self) -> dict[str, object]:
        """Return the answer as plain JSON types."""
        return error_body(self.message, self.status, param=self.param, code=self.code)


def as_api_error(error: ApiError | RequestFailed) -> ApiError:
    """Return the error for the client of a failed request, without hints: these name our own options."""
    if isinstance(error, ApiError):
        return error
    words = error.message.lower()
    if isinstance(error, InvalidRequest):
        return ApiError(error.message)
    if isinstance(error, ServerUnreachable):
        return ApiError(error.message, 503, code="server_unavailable")
    if isinstance(error, AnswerTimedOut):
        return ApiError(error.message, 504)
    if _QUEUE_WORDS in words:
        # OpenAI's clients try this again by themselves.
        return ApiError(error.message, 429, code="rate_limit_exceeded")
    if isinstance(error, RequestRefused):
        if limit := _LENGTH_WORDS.search(error.message):
            return too_long(limit[1] or limit[2], f". {error.message}")
        return ApiError(error.message, 500 if any(word in words for word in _FAULT_WORDS) else 400)
    return ApiError(error.message, 502)


def too_long(most: object, rest: str, key: str | None = None) -> ApiError:
    """Return the refusal of a prompt; LiteLLM and others know it by OpenAI's words at its beginning."""
    message = f"This model's maximum context length is {most} tokens{rest}"
    return ApiError(message, param=key, code="context_length_exceeded")
