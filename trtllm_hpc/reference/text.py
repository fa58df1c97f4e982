"""Text to token ids and back, for the pre- and postprocessing models.

It uses the ``tokenizers`` library without transformers, so that these
processes start in a fraction of a second and stay small.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_hpc.errors import RequestFailed, StartFailed
from trtllm_hpc.paths import read_json

Array = np.ndarray[Any, Any]

_ON = frozenset({"true", "1", "t", "y", "yes"})
_OFF = frozenset({"false", "0", "f", "n", "no"})


class TextTokenizer:
    """The tokenizer in a folder with ``tokenizer.json`` and ``tokenizer_config.json``."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Read the tokenizer.

        Raises:
            StartFailed: there is none, or it cannot be read.
        """
        from tokenizers import Tokenizer

        file = Path(folder) / "tokenizer.json"
        if not file.is_file():
            raise StartFailed(f"There is no tokenizer.json in {folder}.", hint="check tokenizer_dir")
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
            config = read_json(file.with_name("tokenizer_config.json")) or {}
        except Exception as error:  # the Rust library raises plain Exception
            raise StartFailed(f"{file} cannot be read: {error}.", hint="check tokenizer_dir") from error
        self.vocab_size = int(self._tokenizer.get_vocab_size())
        """Number of tokens, including special ones."""
        self.end_id = self._special_id(config.get("eos_token"))
        """Id of the end token; ``None`` if the tokenizer has none."""
        self.pad_id = self._special_id(config.get("pad_token"))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with the tokenizer's special tokens before and after it by default."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, tokens: list[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes of incomplete letters become U+FFFD."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens))

    def _special_id(self, token: Any) -> int | None:
        content = token.get("content") if isinstance(token, dict) else token
        return None if content is None else self._tokenizer.token_to_id(content)


def switch(parameters: Mapping[str, str], name: str, *, default: bool) -> bool:
    """A boolean parameter of ``config.pbtxt``; an empty or missing one has its default.

    Raises:
        StartFailed: it is neither true nor false.
    """
    text = parameters.get(name, "").strip().lower()
    if not text:
        return default
    if text not in _ON | _OFF:
        raise StartFailed(f"The model's parameter {name} is {text!r}; it must be true or false.")
    return text in _ON


def text_of(name: str, value: bytes) -> str:
    """Decode a text of a request.

    Raises:
        RequestFailed: it is not UTF-8.
    """
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestFailed(f"{name} is not valid UTF-8: {error}.") from error


def padded_prompts(prompts: Sequence[Sequence[int]], pad_id: int) -> Array:
    """Prompts as [prompts, tokens], shorter ones padded on the right."""
    longest = max(map(len, prompts))
    rows = [[*prompt, *[pad_id] * (longest - len(prompt))] for prompt in prompts]
    return np.array(rows, dtype=np.int32).reshape(len(prompts), longest)


def word_lists(tokenizer: TextTokenizer, name: str, rows: Array | None, count: int) -> Array:
    """Words as [prompts, 2, tokens]: the tokens of all words of a prompt, and the end of each, then -1.

    Each word is tokenised by itself, as in ``preprocessing/1/model.py`` of
    NVIDIA's tensorrtllm_backend v0.16.0; after a space a tokenizer may split it
    in another way. Empty words, which clients send for "none", are dropped.
    """
    if rows is None:
        return np.zeros((count, 2, 0), dtype=np.int32)
    encoded = [
        [
            tokens
            for word in row
            if (tokens := tokenizer.encode(text_of(name, word), add_special_tokens=False))
        ]
        for row in rows
    ]
    width = max(1, *(sum(map(len, words)) for words in encoded)) if encoded else 1
    lists = np.zeros((len(encoded), 2, width), dtype=np.int32)
    lists[:, 1] = -1
    for row, words in zip(lists, encoded, strict=True):
        flat = [token for word in words for token in word]
        row[0, : len(flat)] = flat
        row[1, : len(words)] = np.cumsum([len(word) for word in words], dtype=np.int32)
    return lists


def embedding_bias(tokenizer: TextTokenizer, words: Array | None, weights: Array | None, count: int) -> Array:
    """The bias of each token as [prompts, vocabulary]: each token of a word gets the word's weight.

    Raises:
        RequestFailed: there are not as many weights as words.
    """
    if words is None and weights is None:
        return np.zeros((count, 0), dtype=np.float32)
    if words is None or weights is None or words.shape != weights.shape:
        raise RequestFailed(
            "embedding_bias_words and embedding_bias_weights must have one weight for each word."
        )
    bias = np.zeros((len(words), tokenizer.vocab_size), dtype=np.float32)
    for row, row_words, row_weights in zip(bias, words, weights, strict=True):
        for word, weight in zip(row_words, row_weights, strict=True):
            tokens = tokenizer.encode(text_of("embedding_bias_words", word), add_special_tokens=False)
            np.add.at(row, np.array(tokens, dtype=np.intp), weight)
    return bias
