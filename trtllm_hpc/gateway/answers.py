"""Answers in the types of the official ``openai`` package, whole and as chunks of a stream."""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from openai.types import Completion, CompletionChoice, CompletionUsage, Model
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChatCompletionTokenLogprob,
)
from openai.types.chat.chat_completion import Choice as ChatChoice
from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.completion_choice import Logprobs
from pydantic import BaseModel

from trtllm_hpc.gateway.generation import Answer, Finish, Part
from trtllm_hpc.gateway.requests import ChatRequest, CompletionRequest, GenerationRequest
from trtllm_hpc.gateway.tokenizer import ModelTokenizer

_BROKEN = "\N{REPLACEMENT CHARACTER}"


def as_json(answer: BaseModel) -> str:
    """Return an answer as JSON, with the keys that it was made with."""
    # Chunks of a completion have finish_reason null, which the package's type does not know.
    return answer.model_dump_json(exclude_unset=True, warnings=False)


def model_card(name: str, created: int, max_seq_len: int | None) -> Model:
    """Return what ``/v1/models`` says of a model; ``max_model_len`` is the key that vLLM has for it."""
    return Model.model_construct(
        id=name, created=created, object="model", owned_by="trtllm-hpc", max_model_len=max_seq_len
    )


def usage(prompt_tokens: int, output_tokens: int) -> CompletionUsage:
    """Return the tokens of a request: the prompts' by the tokenizer, the answers' as the server sent them."""
    return CompletionUsage(
        prompt_tokens=prompt_tokens,
        completion_tokens=output_tokens,
        total_tokens=prompt_tokens + output_tokens,
    )


class _Chunks(ABC):
    """Makes the chunks of one request's streams."""

    def __init__(self) -> None:
        self._around: dict[int, tuple[str, str]] = {}

    @abstractmethod
    def chunk(self, index: int, part: Part) -> BaseModel:
        """Return a part of the answer of that number."""

    def text_chunk(self, index: int, text: str) -> str:
        """Return the JSON of a chunk with nothing but text, as most are.

        Those of an answer differ in their text alone, so the package's type, which takes a third of a
        stream's CPU time, makes only the first one.
        """
        if index not in self._around:
            mark = uuid.uuid4().hex
            before, _, after = as_json(self.chunk(index, Part(mark))).partition(f'"{mark}"')
            self._around[index] = before, after
        before, after = self._around[index]
        return f"{before}{json.dumps(text, ensure_ascii=False)}{after}"


class Completions(_Chunks):
    """Makes the answers of ``/v1/completions``."""

    def __init__(self, request: CompletionRequest, tokenizer: ModelTokenizer) -> None:
        super().__init__()
        self._request, self._tokenizer = request, tokenizer
        self._head = _head(request, "cmpl", "text_completion")
        self._offsets: dict[int, int] = {}

    def whole(self, answers: Sequence[Answer], used: CompletionUsage) -> Completion:
        """Return the whole answer: the answers to the first prompt, then to the second, and so on."""
        choices = [
            self._choice(index, each.text, each.ids, each.log_probs, each.finish)
            for index, each in enumerate(answers)
        ]
        return Completion.model_construct(**self._head, choices=choices, usage=used)

    def begin(self, index: int) -> Iterator[Completion]:
        """Yield what comes before the first part of an answer: nothing."""
        yield from ()

    def chunk(self, index: int, part: Part) -> Completion:
        """Return a part of an answer."""
        choice = self._choice(index, part.text, part.ids, part.log_probs, part.finish)
        return Completion.model_construct(**self._head, choices=[choice], **_no_usage(self._request))

    def last(self, used: CompletionUsage) -> Completion:
        """Return the chunk with the usage."""
        return Completion.model_construct(**self._head, choices=[], usage=used)

    def _choice(
        self, index: int, text: str, ids: Sequence[int], log_probs: Sequence[float], finish: Finish | None
    ) -> CompletionChoice:
        found = self._log_probs(index, ids, log_probs) if self._request.wants_log_probs and ids else None
        return CompletionChoice.model_construct(index=index, text=text, logprobs=found, finish_reason=finish)

    def _log_probs(self, index: int, ids: Sequence[int], log_probs: Sequence[float]) -> Logprobs:
        tokens = [self._tokenizer.decode([each], skip_special_tokens=False) for each in ids]
        offsets, offset = [], self._offsets.get(index, 0)
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        self._offsets[index] = offset
        return Logprobs.model_construct(
            text_offset=offsets, token_logprobs=list(log_probs), tokens=tokens, top_logprobs=None
        )


class Chats(_Chunks):
    """Makes the answers of ``/v1/chat/completions``."""

    def __init__(self, request: ChatRequest, tokenizer: ModelTokenizer) -> None:
        super().__init__()
        self._request, self._tokenizer = request, tokenizer
        self._head = _head(request, "chatcmpl", "chat.completion")
        self._chunk_head = {**self._head, "object": "chat.completion.chunk"}

    def whole(self, answers: Sequence[Answer], used: CompletionUsage) -> ChatCompletion:
        """Return the whole answer."""
        choices = [
            ChatChoice.model_construct(
                index=index,
                message=ChatCompletionMessage(role="assistant", content=each.text, refusal=None),
                logprobs=self._log_probs(each.ids, each.log_probs),
                finish_reason=each.finish,
            )
            for index, each in enumerate(answers)
        ]
        return ChatCompletion.model_construct(**self._head, choices=choices, usage=used)

    def begin(self, index: int) -> Iterator[ChatCompletionChunk]:
        """Yield what comes before the first part of an answer: whose it is."""
        yield self._chunk(index, ChoiceDelta.model_construct(role="assistant", content=""))

    def chunk(self, index: int, part: Part) -> ChatCompletionChunk:
        """Return a part of an answer."""
        text: dict[str, Any] = {"content": part.text} if part.text or part.finish is None else {}
        found = self._log_probs(part.ids, part.log_probs)
        return self._chunk(index, ChoiceDelta.model_construct(**text), found, part.finish)

    def last(self, used: CompletionUsage) -> ChatCompletionChunk:
        """Return the chunk with the usage."""
        return ChatCompletionChunk.model_construct(**self._chunk_head, choices=[], usage=used)

    def _chunk(
        self,
        index: int,
        delta: ChoiceDelta,
        found: ChoiceLogprobs | None = None,
        finish: Finish | None = None,
    ) -> ChatCompletionChunk:
        choice = ChunkChoice.model_construct(index=index, delta=delta, logprobs=found, finish_reason=finish)
        return ChatCompletionChunk.model_construct(
            **self._chunk_head, choices=[choice], **_no_usage(self._request)
        )

    def _log_probs(self, ids: Sequence[int], log_probs: Sequence[float]) -> ChoiceLogprobs | None:
        if not self._request.wants_log_probs or not ids:
            return None
        content = [self._token(each, value) for each, value in zip(ids, log_probs, strict=False)]
        return ChoiceLogprobs.model_construct(content=content, refusal=None)

    def _token(self, token: int, log_prob: float) -> ChatCompletionTokenLogprob:
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        # A part of a letter has bytes that its text does not tell.
        known = None if _BROKEN in text else list(text.encode())
        return ChatCompletionTokenLogprob.model_construct(
            token=text, bytes=known, logprob=log_prob, top_logprobs=[]
        )


def _head(request: GenerationRequest, prefix: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def _no_usage(request: GenerationRequest) -> dict[str, Any]:
    """Where the last chunk has the usage, the others say that they do not."""
    return {"usage": None} if request.wants_usage else {}
