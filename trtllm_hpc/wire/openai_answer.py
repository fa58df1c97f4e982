"""Answers of OpenAI's completions and chats as a server writes them: plain JSON types."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Finish = Literal["stop", "length"]
Json = dict[str, Any]

_BROKEN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Token:
    """A generated token by itself, and the logarithm of its probability."""

    text: str
    log_prob: float


class AnswerWriter:
    """Writes the answers to one request of a model, whole or as the chunks of a stream.

    ``usage_follows`` is whether the stream's last chunk has the usage: then the other chunks have none.
    """

    def __init__(self, model: str, *, is_chat: bool, usage_follows: bool = False) -> None:
        kind, prefix = ("chat.completion", "chatcmpl") if is_chat else ("text_completion", "cmpl")
        self._is_chat = is_chat
        self._no_usage: Json = {"usage": None} if usage_follows else {}
        self._head: Json = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        self._chunk_head = {**self._head, "object": f"{kind}.chunk"} if is_chat else self._head
        self._offsets: dict[int, int] = {}

    def whole(self, choices: Sequence[Json], usage: Json) -> Json:
        """Return an answer with all its choices."""
        return {**self._head, "choices": list(choices), "usage": usage}

    def choice(self, index: int, text: str, tokens: Sequence[Token] | None, finish: Finish) -> Json:
        """Return one choice of a whole answer; ``tokens`` if their probabilities are asked for."""
        content: Json = {"text": text}
        if self._is_chat:
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return self._choice(index, content, tokens, finish)

    def begin(self, index: int) -> list[Json]:
        """Return the chunks before the first part of a choice: a chat names the role."""
        if not self._is_chat:
            return []
        return [self._chunk(self._choice(index, {"delta": {"role": "assistant", "content": ""}}))]

    def chunk(
        self, index: int, text: str, tokens: Sequence[Token] | None = None, finish: Finish | None = None
    ) -> Json:
        """Return a part of a choice."""
        content: Json = {"text": text}
        if self._is_chat:
            content = {"delta": {"content": text} if text or finish is None else {}}
        return self._chunk(self._choice(index, content, tokens, finish))

    def last(self, usage: Json) -> Json:
        """Return the chunk with the usage."""
        return {**self._chunk_head, "choices": [], "usage": usage}

    def _chunk(self, choice: Json) -> Json:
        return {**self._chunk_head, "choices": [choice], **self._no_usage}

    def _choice(
        self,
        index: int,
        content: Json,
        tokens: Sequence[Token] | None = None,
        finish: Finish | None = None,
    ) -> Json:
        log_probs = None
        if tokens:
            log_probs = _chat_log_probs(tokens) if self._is_chat else self._log_probs(index, tokens)
        return {"index": index, **content, "logprobs": log_probs, "finish_reason": finish}

    def _log_probs(self, index: int, tokens: Sequence[Token]) -> Json:
        offsets, offset = [], self._offsets.get(index, 0)
        for token in tokens:
            offsets.append(offset)
            offset += len(token.text)
        self._offsets[index] = offset
        return {
            "text_offset": offsets,
            "token_logprobs": [token.log_prob for token in tokens],
            "tokens": [token.text for token in tokens],
            "top_logprobs": None,
        }


def _chat_log_probs(tokens: Sequence[Token]) -> Json:
    content = [
        {
            "token": token.text,
            # A token can be part of a UTF-8 character, so its bytes cannot be recovered from its text.
            "bytes": None if _BROKEN in token.text else list(token.text.encode()),
            "logprob": token.log_prob,
            "top_logprobs": [],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def usage(prompt_tokens: int, output_tokens: int) -> Json:
    """Return the tokens of a request."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }


def model_card(name: str, created: int, max_seq_len: int | None) -> Json:
    """Return what ``/v1/models`` has of a model; ``max_model_len`` is vLLM's key."""
    card = {"id": name, "created": created, "object": "model", "owned_by": "trtllm-hpc"}
    return {**card, "max_model_len": max_seq_len}


def error_body(message: str, status: int, *, param: str | None = None, code: str | None = None) -> Json:
    """Return an error; ``param`` is the key that is wrong, ``code`` OpenAI's short name, if any."""
    kinds = {404: "not_found_error", 429: "rate_limit_error", 504: "timeout_error"}
    usual = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kinds.get(status, usual), "param": param, "code": code}}
