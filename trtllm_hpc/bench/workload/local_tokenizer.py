"""The model's own tokenizer, read from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtllm_hpc.bench.tokens.sources import BY_TOKENIZER
from trtllm_hpc.bench.workload.vocabulary import Vocabulary

FILE = "tokenizer.json"


class UnusableTokenizer(Exception):
    """A folder's tokenizer cannot be read; the message says why."""


class LocalTokenizer:
    """The library ``tokenizers`` with a folder's ``tokenizer.json``.

    Args:
        special: whether it adds the tokens that begin and end a text, as
            upstream's ``preprocessing`` does unless ``add_special_tokens`` is off.

    Raises:
        UnusableTokenizer: the file is not there or not readable, or the library is not installed.
    """

    counted_by = BY_TOKENIZER

    def __init__(self, folder: Path, *, special: bool = True) -> None:
        self.name = str(folder)
        self._special = special
        self._tokenizer = _read(folder / FILE)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=self._special)
        return [found.ids for found in encoded]

    def vocabulary(self, size: int | None = None) -> Vocabulary:
        """Its tokens but for the special ones.

        Args:
            size: of the model's own vocabulary, which ids must be below.
        """
        special = {i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        ids = sorted(set(self._tokenizer.get_vocab(with_added_tokens=True).values()) - special)
        known = [token for token in ids if size is None or token < size]
        return Vocabulary(known, self.name, size or ids[-1] + 1)


def _read(file: Path) -> Any:
    if not file.is_file():
        raise UnusableTokenizer(f"there is no {FILE} in {file.parent}")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UnusableTokenizer(
            "the library 'tokenizers' is not installed (pip install tokenizers)"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    # The library, written in Rust, raises a bare Exception for whatever is wrong with a file.
    except Exception as error:  # noqa: BLE001
        raise UnusableTokenizer(f"{file} cannot be read: {error}") from None
    # What the file may say of batches is no property of a single text.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
