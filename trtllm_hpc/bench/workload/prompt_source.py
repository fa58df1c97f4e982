"""Generated prompts of given lengths: token ids, or texts of common words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from trtllm_hpc.bench.workload.random_numbers import Codes
from trtllm_hpc.bench.workload.request import (
    BY_TOKENIZER,
    BY_WORKLOAD,
    Request,
    Tokenizer,
    Vocabulary,
    WorkloadSpec,
    settings_error,
)

TOKENIZER_HINT = (
    "--tokenizer FOLDER (with tokenizer.json), or companion.benchmark.workload.tokenizer in the job file"
)

_BATCH = 256
"""Texts in one call of the tokenizer."""
_MIN_WORDS = 8
"""A tokenizer with fewer one-token words cannot make different prompts."""
_MAX_ROUNDS = 32
"""Of correcting texts whose tokens are not the sum of their words'."""

_WORDS = """
    the of and to in is that for it as was with be by on not he his but at are this have from or had an they
    which one you were her all she there would their we him been has when who will more no if out so said
    what up its about into than them can only other new some could time these two may then do first any my
    now such like our over man me even most made after also did many before must through back years where
    much your way well down should because each just those people how too little state good very make world
    still own see men work long get here between both life being under never day same another know while
    last might us great old year off come since against go came right used take three house use again place
    found end part water side until always away something fact less though night head yet hand think home
    give room light face put small left word line river train north south east west early late morning open
    book table letter road field stone tree bird green white black red blue high low deep cold warm summer
    winter spring answer question number city street music paper school friend mother father child king ship
    sea land sun moon star wind rain fire a i e o s t n r d l c m p g b f h k v w y u x j z q
"""
COMMON_WORDS = tuple(_WORDS.split())
"""Most tokenizers have a token for each. Their order must not change: workloads are reproducible."""


@dataclass(frozen=True)
class PromptShape:
    """A request before its prompt has words or ids: one code for each token."""

    codes: Codes
    max_tokens: int
    due_s: float | None = None
    source: str | None = None
    prefix: int | None = None
    """Number of the prefix that it shares with others."""
    prefix_tokens: int = 0


def generated_requests(spec: WorkloadSpec, shapes: Iterable[PromptShape]) -> tuple[list[Request], list[str]]:
    """Return a request for each shape, in their order, and notes for readers of the results.

    Prompts are token ids for a model that takes ids, else texts. Raises ConfigError if there is neither
    tokenizer nor vocabulary for them.
    """
    if not spec.takes_token_ids:
        if spec.tokenizer is None:
            message = "prompts of a given length need the model's tokenizer, and none was found"
            raise settings_error("tokenizer", message, code="no-tokenizer", hint=TOKENIZER_HINT)
        return _texts(TextWriter(spec.tokenizer), shapes)
    if spec.vocabulary is not None:
        return _token_ids(spec.vocabulary, shapes), []
    if spec.tokenizer is not None:
        return _token_ids(common_words_vocabulary(spec.tokenizer), shapes), []
    message = "prompts of token ids need the model's vocabulary, and neither tokenizer nor config.json has it"
    raise settings_error("tokenizer", message, code="no-vocabulary", hint=TOKENIZER_HINT)


def common_words_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return the tokens of common words, for a tokenizer that can only encode."""
    encoded = tokenizer.encode([f"a {word}" for word in COMMON_WORDS])
    special = set(encoded[0]).intersection(*encoded)
    ids = sorted({token for ids in encoded for token in ids} - special)
    return Vocabulary(ids, f"{tokenizer.name}, common words")


def _token_ids(vocabulary: Vocabulary, shapes: Iterable[PromptShape]) -> list[Request]:
    # A list, so that all requests share its int objects: there may be tens of millions of tokens.
    ids = list(vocabulary.ids)
    return [
        Request(
            shape.max_tokens,
            token_ids=tuple(map(ids.__getitem__, (shape.codes % len(ids)).tolist())),
            input_tokens=len(shape.codes),
            input_by=BY_WORKLOAD,
            due_s=shape.due_s,
            source=shape.source,
        )
        for shape in shapes
    ]


def _texts(writer: TextWriter, shapes: Iterable[PromptShape]) -> tuple[list[Request], list[str]]:
    requests: list[Request] = []
    # Of each prefix: the tokens that its requests have in common so far, and how many they should have.
    prefixes: dict[int, tuple[Sequence[int], int]] = {}
    inexact, remaining = 0, iter(shapes)
    while batch := list(islice(remaining, _BATCH)):
        texts = writer.write([shape.codes for shape in batch])
        for shape, (text, token_ids) in zip(batch, texts, strict=True):
            inexact += len(token_ids) != len(shape.codes)
            if shape.prefix is not None:
                begin = token_ids[: shape.prefix_tokens - writer.suffix_tokens]
                common, expected = prefixes.get(shape.prefix, (begin, 0))
                prefixes[shape.prefix] = (_common_begin(common, begin), max(expected, len(begin)))
            requests.append(
                Request(
                    shape.max_tokens,
                    prompt=text,
                    input_tokens=len(token_ids),
                    input_by=BY_TOKENIZER,
                    due_s=shape.due_s,
                    source=shape.source,
                )
            )
    notes = [
        f"Requests of prefix {prefix} share {len(common)} tokens instead of {expected}: "
        "the tokenizer has tokens across words."
        for prefix, (common, expected) in prefixes.items()
        if len(common) < expected
    ]
    if inexact:
        notes.append(
            f"Prompts that do not have the drawn length, since the tokenizer cannot produce it: {inexact:,}. "
            "The records have the real lengths."
        )
    return requests, notes


def _common_begin(some: Sequence[int], others: Sequence[int]) -> Sequence[int]:
    if some == others:
        return some
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False))
    return [token for token, _ in pairs]


class TextWriter:
    """Writes texts of words that are one token each, and lets the tokenizer count the result.

    The first word stands for itself and for the special tokens that the tokenizer adds, so texts have at
    least ``min_tokens``. Raises ConfigError if the tokenizer has too few words of one token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        single = tokenizer.encode(COMMON_WORDS)
        self.min_tokens = min(map(len, single))
        """Tokens of a text of one word."""
        self._first_words = [
            word for word, ids in zip(COMMON_WORDS, single, strict=True) if len(ids) == self.min_tokens
        ]
        self._separator, self._words, pairs = self._one_token_words()
        self.suffix_tokens = _common_end(single[COMMON_WORDS.index(self._first_words[0])], pairs)
        """Special tokens that the tokenizer adds after each text."""

    def _one_token_words(self) -> tuple[str, list[str], list[list[int]]]:
        """Words that lengthen a text by one token, and the separator before each: a space, or nothing."""
        for separator in (" ", ""):
            pairs = self.tokenizer.encode(
                [f"{self._first_words[0]}{separator}{word}" for word in COMMON_WORDS]
            )
            fitting = [
                (word, ids)
                for word, ids in zip(COMMON_WORDS, pairs, strict=True)
                if len(ids) == self.min_tokens + 1
            ]
            if len(fitting) >= _MIN_WORDS:
                return separator, [word for word, _ in fitting], [ids for _, ids in fitting]
        message = f"the tokenizer ({self.tokenizer.name}) encodes too few common words as one token"
        hint = "use workload.kind dataset or prompts"
        raise settings_error("tokenizer", message, code="odd-tokenizer", hint=hint)

    def write(self, codes: Sequence[Codes]) -> list[tuple[str, list[int]]]:
        """Return a text and its token ids for each row of codes, one token a code."""
        rows = [self._words_of(row) for row in codes]
        lengths = [max(len(row), self.min_tokens) for row in codes]
        encoded = self._encode(rows)
        for attempt in range(_MAX_ROUNDS):
            wrong = [i for i, ids in enumerate(encoded) if len(ids) != lengths[i]]
            if not wrong:
                break
            for i in wrong:
                rows[i] = self._corrected(rows[i], lengths[i] - len(encoded[i]), attempt)
            for i, ids in zip(wrong, self._encode([rows[i] for i in wrong]), strict=True):
                encoded[i] = ids
        return [(self._separator.join(row), ids) for row, ids in zip(rows, encoded, strict=True)]

    def _words_of(self, codes: Codes) -> list[str]:
        """The words of one text; codes of the tokenizer's special tokens have no word."""
        first = self._first_words[int(codes[0]) % len(self._first_words)]
        begin = self.min_tokens - self.suffix_tokens
        indices = codes[begin : max(begin, len(codes) - self.suffix_tokens)] % len(self._words)
        return [first, *(self._words[index] for index in indices.tolist())]

    def _encode(self, rows: Sequence[Sequence[str]]) -> list[list[int]]:
        return self.tokenizer.encode([self._separator.join(row) for row in rows])

    def _corrected(self, row: list[str], missing: int, attempt: int) -> list[str]:
        """The row with words added or removed at the end; each attempt adds others, to end cycles."""
        if missing < 0:
            return row[: max(1, len(row) + missing)]
        first = len(row) + attempt * attempt
        return row + [self._words[index % len(self._words)] for index in range(first, first + missing)]


def _common_end(first: Sequence[int], others: Sequence[Sequence[int]]) -> int:
    """The number of tokens that all of them end with."""
    count = 0
    while count < len(first) and all(ids[-1 - count] == first[-1 - count] for ids in others):
        count += 1
    return count
