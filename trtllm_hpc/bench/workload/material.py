"""What prompts of a given length are made of: token ids, or words of one token each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

from trtllm_hpc.bench.tokens.sources import BY_WORKLOAD
from trtllm_hpc.bench.workload.beginnings import Beginnings
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.bench.workload.shape import Shape
from trtllm_hpc.bench.workload.texts import TextWriter
from trtllm_hpc.bench.workload.vocabulary import Vocabulary, of_words
from trtllm_hpc.bench.workload.wanted import Wanted, refused, some

TOKENIZER_HINT = (
    "--tokenizer FOLDER (with tokenizer.json), or companion.benchmark.workload.tokenizer in the job file"
)

_AT_ONCE = 256
"""Texts that the tokenizer is given in one piece."""


class Material(Protocol):
    """Turns shapes into requests."""

    def requests(self, shapes: Iterable[Shape]) -> Iterator[Request]:
        """A request for each shape, in their order."""

    def notes(self) -> list[str]:
        """What could not be as asked, after the requests were made."""


def material(wanted: Wanted) -> Material:
    """Ids for a model that takes ids, else texts.

    Raises:
        ConfigError: there is neither tokenizer nor vocabulary for it.
    """
    if not wanted.token_ids:
        if wanted.tokenizer is None:
            message = "prompts of a given length need the model's tokenizer, and there is none to be had"
            raise refused("tokenizer", message, code="no-tokenizer", hint=TOKENIZER_HINT)
        return TextMaterial(TextWriter(wanted.tokenizer))
    if wanted.vocabulary is not None:
        return IdMaterial(wanted.vocabulary)
    if wanted.tokenizer is not None:
        return IdMaterial(of_words(wanted.tokenizer))
    message = (
        "prompts of token ids need the model's vocabulary, and neither tokenizer nor config.json tells it"
    )
    raise refused("tokenizer", message, code="no-vocabulary", hint=TOKENIZER_HINT)


class IdMaterial:
    """Prompts of ids of the vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        # A list, so that all requests share its numbers: there may be tens of millions of tokens.
        self._ids = list(vocabulary.ids)

    def requests(self, shapes: Iterable[Shape]) -> Iterator[Request]:
        """A request for each shape, in their order."""
        for shape in shapes:
            places = (shape.codes % len(self._ids)).tolist()
            yield Request(
                shape.max_tokens,
                token_ids=tuple(map(self._ids.__getitem__, places)),
                input_tokens=len(places),
                input_by=BY_WORKLOAD,
                due_s=shape.due_s,
                source=shape.source,
            )

    def notes(self) -> list[str]:
        """None: ids are always as asked."""
        return []


class TextMaterial:
    """Texts of common words, counted by the tokenizer."""

    def __init__(self, writer: TextWriter) -> None:
        self._writer = writer
        self._beginnings = Beginnings()
        self._inexact = 0

    def requests(self, shapes: Iterable[Shape]) -> Iterator[Request]:
        """A request for each shape, in their order."""
        remaining = iter(shapes)
        while batch := list(islice(remaining, _AT_ONCE)):
            written = self._writer.write([shape.codes for shape in batch])
            for shape, text in zip(batch, written, strict=True):
                self._inexact += len(text.token_ids) != len(shape.codes)
                if shape.prefix is not None:
                    shared = shape.prefix_tokens - self._writer.trailing
                    self._beginnings.see(shape.prefix, text.token_ids[:shared])
                yield Request(
                    shape.max_tokens,
                    prompt=text.text,
                    input_tokens=len(text.token_ids),
                    input_by=self._writer.tokenizer.counted_by,
                    due_s=shape.due_s,
                    source=shape.source,
                )

    def notes(self) -> list[str]:
        """How many texts are not exactly as long as asked, and which prefixes are not shared whole."""
        notes = self._beginnings.notes()
        if self._inexact:
            exact = f"{some(self._inexact, 'prompt')} not exactly as long as asked"
            notes.append(
                f"{exact}: the tokenizer makes no text of that length. Their real lengths are recorded."
            )
        return notes
