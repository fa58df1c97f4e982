"""Texts of exactly so many tokens, for any tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_hpc.bench.workload.shape import Codes
from trtllm_hpc.bench.workload.tokenizer import Tokenizer
from trtllm_hpc.bench.workload.wanted import refused
from trtllm_hpc.bench.workload.words import COMMON

_FEWEST_WORDS = 8
"""A tokenizer with fewer words of one token cannot make prompts that differ."""
_ROUNDS = 32
"""Of mending texts that a tokenizer counts otherwise than word by word."""


@dataclass(frozen=True)
class Text:
    """A text, and how the tokenizer cuts it."""

    text: str
    token_ids: Sequence[int]


class TextWriter:
    """Writes words that cost a token each, and lets the tokenizer count the result.

    The first word stands for itself and for the tokens that the tokenizer
    puts around each text. Texts are therefore no shorter than ``shortest``.

    Raises:
        ConfigError: the tokenizer has no words of one token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        alone = tokenizer.encode(COMMON)
        self.shortest = min(map(len, alone))
        """Tokens of a text of one word."""
        self._openers = [word for word, ids in zip(COMMON, alone, strict=True) if len(ids) == self.shortest]
        self._joint, self._words, pairs = self._followers()
        self.trailing = _common_end(alone[COMMON.index(self._openers[0])], pairs)
        """Tokens that the tokenizer puts after each text."""

    def _followers(self) -> tuple[str, list[str], list[list[int]]]:
        """Words that lengthen a text by one token, and what stands before each: a space, or nothing."""
        for joint in (" ", ""):
            pairs = self.tokenizer.encode([f"{self._openers[0]}{joint}{word}" for word in COMMON])
            fitting = [
                (word, ids) for word, ids in zip(COMMON, pairs, strict=True) if len(ids) == self.shortest + 1
            ]
            if len(fitting) >= _FEWEST_WORDS:
                return joint, [word for word, _ in fitting], [ids for _, ids in fitting]
        message = f"the tokenizer ({self.tokenizer.name}) has hardly a common word that is one token"
        raise refused("tokenizer", message, code="odd-tokenizer", hint="use workload.kind dataset or prompts")

    def write(self, codes: Sequence[Codes]) -> list[Text]:
        """A text for each row of codes, with a token for each code; the same codes begin alike."""
        rows = [self._row(row) for row in codes]
        lengths = [max(len(row), self.shortest) for row in codes]
        encoded = self._encoded(rows)
        for attempt in range(_ROUNDS):
            wrong = [i for i, ids in enumerate(encoded) if len(ids) != lengths[i]]
            if not wrong:
                break
            for i in wrong:
                rows[i] = self._mended(rows[i], lengths[i] - len(encoded[i]), attempt)
            for i, ids in zip(wrong, self._encoded([rows[i] for i in wrong]), strict=True):
                encoded[i] = ids
        return [Text(self._joint.join(row), ids) for row, ids in zip(rows, encoded, strict=True)]

    def _row(self, codes: Codes) -> list[str]:
        """The words of one text: the last ones stand for no token if some come after the text."""
        opener = self._openers[int(codes[0]) % len(self._openers)]
        begun = self.shortest - self.trailing
        places = codes[begun : max(begun, len(codes) - self.trailing)] % len(self._words)
        return [opener, *(self._words[place] for place in places.tolist())]

    def _encoded(self, rows: Sequence[Sequence[str]]) -> list[list[int]]:
        return self.tokenizer.encode([self._joint.join(row) for row in rows])

    def _mended(self, row: list[str], missing: int, attempt: int) -> list[str]:
        """The row with words more or less at the end; other ones in each attempt, lest it goes in circles."""
        if missing < 0:
            return row[: max(1, len(row) + missing)]
        first = len(row) + attempt * attempt
        return row + [self._words[place % len(self._words)] for place in range(first, first + missing)]


def _common_end(first: Sequence[int], others: Sequence[Sequence[int]]) -> int:
    """How many tokens all of them end with."""
    count = 0
    while count < len(first) and all(ids[-1 - count] == first[-1 - count] for ids in others):
        count += 1
    return count
