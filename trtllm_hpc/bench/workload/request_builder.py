"""Requests from given prompts: count tokens, send token ids where the model takes them, drop long prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from trtllm_hpc.bench.workload.dataset import SourcePrompt
from trtllm_hpc.bench.workload.prompt_source import TOKENIZER_HINT
from trtllm_hpc.bench.workload.random_numbers import random_source
from trtllm_hpc.bench.workload.request import (
    BY_TOKENIZER,
    BY_WORKLOAD,
    Request,
    WorkloadSpec,
    file_error,
    settings_error,
)


class RequestBuilder:
    """Builds requests from prompts.

    Raises ConfigError if the length of prompts is limited, and there is no tokenizer to count them.
    """

    def __init__(self, spec: WorkloadSpec) -> None:
        self._spec = spec
        self._seen = 0
        self._too_long = 0
        if spec.tokenizer is None and not spec.takes_token_ids and spec.workload.max_input_tokens is not None:
            message = "prompts can only be limited with a tokenizer, and none was found"
            raise settings_error("max_input_tokens", message, code="no-tokenizer", hint=TOKENIZER_HINT)

    def build(self, prompts: Sequence[SourcePrompt]) -> list[Request | None]:
        """Return a request for each prompt, in their order; ``None`` for those that are too long."""
        encoded = self._encode([prompt.prompt for prompt in prompts if prompt.prompt is not None])
        return [self._request(prompt, None if prompt.prompt is None else next(encoded)) for prompt in prompts]

    def notes(self) -> list[str]:
        """Say how many prompts were left out, and whether the others were counted."""
        notes = []
        if self._too_long:
            notes.append(too_long_note(self._too_long, self._seen, "prompts", self._spec.limit))
        if self._spec.tokenizer is None and not (self._spec.takes_token_ids or self._spec.counted_by_server):
            notes.append("The prompts' tokens were not counted: no tokenizer was found.")
        return notes

    def in_random_order(self, prompts: Sequence[SourcePrompt]) -> list[Request]:
        """Return the requested number of requests: all prompts once, then again, each time in another order.

        Raises ConfigError if all of them are too long.
        """
        built: dict[int, Request | None] = {}
        requests: list[Request] = []
        order = random_order(len(prompts), self._spec.settings.seed)
        while len(requests) < self._spec.count:
            indices = list(islice(order, self._spec.count - len(requests)))
            new = [index for index in dict.fromkeys(indices) if index not in built]
            built.update(zip(new, self.build([prompts[index] for index in new]), strict=True))
            if len(built) == len(prompts) and not any(built.values()):
                raise self._spec.all_too_long()
            requests += [request for index in indices if (request := built[index]) is not None]
        return requests

    def _encode(self, prompts: Sequence[str]) -> Iterator[list[int] | None]:
        tokenizer = self._spec.tokenizer
        if tokenizer is not None:
            return iter(tokenizer.encode(prompts))
        if prompts and self._spec.takes_token_ids:
            message = "the core model takes token ids, and there is no tokenizer to encode the texts"
            raise settings_error("tokenizer", message, code="no-tokenizer", hint=TOKENIZER_HINT)
        return iter([None] * len(prompts))

    def _request(self, prompt: SourcePrompt, encoded: list[int] | None) -> Request | None:
        ids = encoded if prompt.token_ids is None else self._checked_ids(prompt, prompt.token_ids)
        self._seen += 1
        if ids is not None and self._spec.limit is not None and len(ids) > self._spec.limit:
            self._too_long += 1
            return None
        sends_ids = self._spec.takes_token_ids or prompt.prompt is None
        return Request(
            prompt.max_tokens or self._spec.settings.max_tokens,
            prompt=None if sends_ids else prompt.prompt,
            token_ids=tuple(ids) if sends_ids and ids is not None else None,
            input_tokens=None if ids is None else len(ids),
            input_by=None if ids is None else BY_WORKLOAD if sends_ids else BY_TOKENIZER,
            due_s=prompt.due_s,
            source=prompt.source,
        )

    def _checked_ids(self, prompt: SourcePrompt, ids: tuple[int, ...]) -> tuple[int, ...]:
        """The ids of a file's prompt, if the model takes ids and has these."""
        if not (self._spec.takes_token_ids or self._spec.ids_allowed):
            message = "has token ids, but the model takes texts"
            hint = "--model tensorrt_llm, or --protocol openai"
            raise file_error(self._spec.file, prompt.line, message, hint=hint)
        size = None if self._spec.vocabulary is None else self._spec.vocabulary.size
        if size is not None and max(ids) >= size:
            message = f"token id {max(ids)} is outside the model's vocabulary of {size:,}"
            raise file_error(self._spec.file, prompt.line, message)
        return ids


def too_long_note(left_out: int, seen: int, what: str, limit: int | None) -> str:
    """Return the sentence about prompts or requests that were left out."""
    return f"Left out {left_out:,} of {seen:,} {what}: longer than {limit} tokens."


def random_order(count: int, seed: int) -> Iterator[int]:
    """Yield all numbers below ``count`` in random order, then again in another, without end."""
    source = random_source(seed, "order")
    while True:
        yield from source.permutation(count).tolist()
