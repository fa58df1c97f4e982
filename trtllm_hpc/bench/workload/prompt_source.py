"""Generated prompts of given lengths: token ids, or texts of common words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from trtllm_hpc.bench.workload.random_numbers import Codes
from trtllm_hpc.bench.workload.request import (
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
"""Most tokenizers have a token for each. Their order must not change: it is part of what makes workloads
reproducible. Single letters come last."""


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


def prompt_source(spec: WorkloadSpec) -> TokenIdSource | TextSource:
    """Return a source of token ids for a model that takes ids, else of texts.

    Raises ConfigError if there is neither tokenizer nor vocabulary for it.
    """
    if not spec.token_ids:
        if spec.tokenizer is None:
            message = "prompts of a given length need the model's tokenizer, and none was found"
            raise settings_error("tokenizer", message, code="no-tokenizer", hint=TOKENIZER_HINT)
        return TextSource(TextWriter(spec.tokenizer))
    if spec.vocabulary is not None:
        return TokenIdSource(spec.vocabulary)
    if spec.tokenizer is not None:
        return TokenIdSource(common_words_vocabulary(spec.tokenizer))
    message = "prompts of token ids need the model's vocabulary, and neither tokenizer nor config.json has it"
    raise settings_error("tokenizer", message, code="no-vocabulary", hint=TOKENIZER_HINT)


def common_words_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return the tokens of common words, for a tokenizer that can only encode."""
    encoded = tokenizer.encode([f"a {word}" for word in COMMON_WORDS])
    special = set(encoded[0]).intersection(*encoded)
    ids = sorted({token for ids in encoded for token in ids} - special)
    return Vocabulary(ids, f"{tokenizer.name}, common words")


class TokenIdSource:
    """Prompts of token ids from the vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        # A list, so that all requests share its int objects: there may be tens of millions of tokens.
        self._ids = list(vocabulary.ids)

    def requests(self, shapes: Iterable[PromptShape]) -> Iterator[Request]:
        """Yield a request for each shape, in their order."""
        for shape in shapes:
            indices = (shape.codes % len(self._ids)).tolist()
            yield Request(
                shape.max_tokens,
                token_ids=tuple(map(self._ids.__getitem__, indices)),
                input_tokens=len(indices),
                input_by=BY_WORKLOAD,
                due_s=shape.due_s,
                source=shape.source,
            )

    def notes(self) -> list[str]:
        """Return nothing: ids always have the exact length."""
        return []


class TextSource:
    """Texts of common words, counted by the tokenizer."""

    def __init__(self, writer: TextWriter) -> None:
        self._writer = writer
        self._prefixes = _SharedPrefixes()
        self._inexact = 0

    def requests(self, shapes: Iterable[PromptShape]) -> Iterator[Request]:
        """Yield a request for each shape, in their order."""
        remaining = iter(shapes)
        while batch := list(islice(remaining, _BATCH)):
            texts = self._writer.write([shape.codes for shape in batch])
            for shape, (text, token_ids) in zip(batch, texts, strict=True):
                self._inexact += len(token_ids) != len(shape.codes)
                if shape.prefix is not None:
                    shared = shape.prefix_tokens - self._writer.suffix_tokens
                    self._prefixes.add(shape.prefix, token_ids[:shared])
                yield Request(
                    shape.max_tokens,
                    prompt=text,
                    input_tokens=len(token_ids),
                    input_by=self._writer.tokenizer.counted_by,
                    due_s=shape.due_s,
                    source=shape.source,
                )

    def notes(self) -> list[str]:
        """Say which prefixes are not shared completely, and how many texts do not have the drawn length."""
        notes = self._prefixes.notes()
        if self._inexact:
            notes.append(
                f"Prompts that do not have the drawn length, since the tokenizer cannot produce it: "
                f"{self._inexact:,}. The records have the real lengths."
            )
        return notes


class _SharedPrefixes:
    """The tokens that all requests of each prefix have in common so far."""

    def __init__(self) -> None:
        self._tokens: dict[int, Sequence[int]] = {}
        self._expected: dict[int, int] = {}

    def add(self, prefix: int, tokens: Sequence[int]) -> None:
        """Add a request of a prefix, with the tokens that should be the prefix."""
        common = self._tokens.setdefault(prefix, tokens)
        self._expected[prefix] = max(self._expected.get(prefix, 0), len(tokens))
        if common != tokens:
            pairs = takewhile(lambda pair: pair[0] == pair[1], zip(common, tokens, strict=False))
            self._tokens[prefix] = [token for token, _ in pairs]

    def notes(self) -> list[str]:
        return [
            f"Requests of prefix {prefix} share {len(tokens)} tokens instead of {self._expected[prefix]}: "
            "the tokenizer has tokens across words."
            for prefix, tokens in self._tokens.items()
            if len(tokens) < self._expected[prefix]
        ]


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
