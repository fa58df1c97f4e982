"""Questions that somebody wrote, as requests: counted, cut into ids where ids are asked, not too long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from trtllm_hpc.bench.tokens.sources import BY_WORKLOAD
from trtllm_hpc.bench.workload.draws import Stream, draws
from trtllm_hpc.bench.workload.fields import Question
from trtllm_hpc.bench.workload.material import TOKENIZER_HINT
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.bench.workload.wanted import Wanted, misread, refused, some
from trtllm_hpc.errors import ConfigError


class Asking:
    """Makes requests of questions.

    Args:
        path: the file of the questions, for messages.

    Raises:
        ConfigError: prompts may only have so many tokens, and nobody can count them.
    """

    def __init__(self, wanted: Wanted, path: Path | None = None) -> None:
        self._wanted = wanted
        self._path = path
        self._seen = 0
        self._too_long = 0
        if wanted.tokenizer is None and not wanted.token_ids and wanted.workload.max_input_tokens is not None:
            message = "only a tokenizer can tell which prompts are longer, and there is none to be had"
            raise refused("max_input_tokens", message, code="no-tokenizer", hint=TOKENIZER_HINT)

    def requests(self, questions: Sequence[Question]) -> list[Request | None]:
        """A request for each question, in their order; ``None`` for those that are too long."""
        counted = self._encoded([question.prompt for question in questions if question.prompt is not None])
        return [
            self._request(question, None if question.prompt is None else next(counted))
            for question in questions
        ]

    def notes(self) -> list[str]:
        """How many questions were left out, and whether their tokens are known."""
        notes = []
        if self._too_long:
            many = f"{self._too_long:,} of {some(self._seen, 'prompt')}"
            notes.append(f"{many} left out: longer than {self._wanted.limit} tokens.")
        if self._wanted.tokenizer is None and not self._wanted.token_ids:
            notes.append("Nobody has counted the prompts' tokens: there is no tokenizer to be had.")
        return notes

    def nothing_left(self) -> ConfigError:
        """The error for a workload without a single request."""
        message = f"every prompt is longer than {self._wanted.limit} tokens"
        return refused("max_input_tokens", message, code="too-long", hint="take another file, or allow more")

    def _encoded(self, prompts: Sequence[str]) -> Iterator[list[int] | None]:
        tokenizer = self._wanted.tokenizer
        if tokenizer is not None:
            return iter(tokenizer.encode(prompts))
        if prompts and self._wanted.token_ids:
            message = (
                "the core model takes token ids, and there is no tokenizer that would make them of texts"
            )
            raise refused("tokenizer", message, code="no-tokenizer", hint=TOKENIZER_HINT)
        return iter([None] * len(prompts))

    def _request(self, question: Question, encoded: list[int] | None) -> Request | None:
        ids = encoded if question.token_ids is None else self._known(question, question.token_ids)
        self._seen += 1
        if ids is not None and self._wanted.limit is not None and len(ids) > self._wanted.limit:
            self._too_long += 1
            return None
        sends_ids = self._wanted.token_ids
        return Request(
            question.max_tokens or self._wanted.settings.max_tokens,
            prompt=None if sends_ids else question.prompt,
            token_ids=tuple(ids) if sends_ids and ids is not None else None,
            input_tokens=None if ids is None else len(ids),
            input_by=None if ids is None else self._counted_by(),
            due_s=question.due_s,
            source=question.source,
        )

    def _counted_by(self) -> str:
        tokenizer = self._wanted.tokenizer
        return BY_WORKLOAD if self._wanted.token_ids or tokenizer is None else tokenizer.counted_by

    def _known(self, question: Question, ids: tuple[int, ...]) -> tuple[int, ...]:
        """The ids of a question, which the model must take and know."""
        path = self._path or Path("the workload")
        if not self._wanted.token_ids:
            message = "holds token ids, and the model takes texts"
            raise misread(path, question.line, message, hint="--model tensorrt_llm")
        size = None if self._wanted.vocabulary is None else self._wanted.vocabulary.size
        if size is not None and max(ids) >= size:
            raise misread(path, question.line, f"token {max(ids)} is none of the model's, which has {size:,}")
        return ids


def in_seeded_order(wanted: Wanted, questions: Sequence[Question], asking: Asking) -> list[Request]:
    """As many requests as are wanted: all questions before any of them again, each time in another order.

    Raises:
        ConfigError: all of them are too long.
    """
    made: dict[int, Request | None] = {}
    requests: list[Request] = []
    order = _order(len(questions), wanted.settings.seed)
    while len(requests) < wanted.count:
        places = list(islice(order, wanted.count - len(requests)))
        new = [place for place in dict.fromkeys(places) if place not in made]
        made.update(zip(new, asking.requests([questions[place] for place in new]), strict=True))
        if len(made) == len(questions) and not any(made.values()):
            raise asking.nothing_left()
        requests += [request for place in places if (request := made[place]) is not None]
    return requests


def _order(count: int, seed: int) -> Iterator[int]:
    source = draws(seed, Stream.ORDER)
    while True:
        yield from source.permutation(count).tolist()
