"""Text to token ids and back, for the pre- and postprocessing models.

The ``tokenizers`` library alone, without transformers: these processes then
start in a fraction of a second and stay small.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import RequestFailed, StartFailed
from trtllm_hpc.paths import read_json


class TextTokenizer:
    """The tokenizer in a folder that holds ``tokenizer.json`` and ``tokenizer_config.json``."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Read the tokenizer.

        Raises:
            StartFailed: the folder holds none that can be read.
        """
        from tokenizers import Tokenizer

        file = Path(folder) / "tokenizer.json"
        if not file.is_file():
            raise StartFailed(f"There is no tokenizer.json in {folder}.", hint="check tokenizer_dir")
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
            config = read_json(file.with_name("tokenizer_config.json")) or {}
        except Exception as error:  # the Rust library raises nothing narrower
            raise StartFailed(f"{file} cannot be read: {error}.", hint="check tokenizer_dir") from error
        self.end_id = self._special_id(config.get("eos_token"))
        """Id of the token that ends a text, or ``None`` if the tokenizer names none."""
        self.pad_id = self._special_id(config.get("pad_token"))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the tokens that the tokenizer puts before and after each text."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, tokens: list[int]) -> str:
        """Text of token ids, without special tokens."""
        return str(self._tokenizer.decode(tokens))

    def _special_id(self, token: Any) -> int | None:
        content = token.get("content") if isinstance(token, dict) else token
        return None if content is None else self._tokenizer.token_to_id(content)


def only_text(values: list[bytes]) -> str:
    """The one text of a request.

    Raises:
        RequestFailed: there are several, or it is not UTF-8.
    """
    if len(values) != 1:
        raise RequestFailed(
            f"The reference backend takes one prompt a request; this one holds {len(values)}. "
            f"Send {len(values)} requests."
        )
    try:
        return values[0].decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestFailed(f"The prompt is not valid UTF-8: {error}.") from error


def refuse_words(name: str, words: list[bytes]) -> None:
    """Refuse bad or stop words; empty strings, which clients send for "none", are none.

    Raises:
        RequestFailed: there are any.
    """
    if any(words):
        raise RequestFailed(
            f"{name} is not supported by the reference backend. Leave it out or send an empty text."
        )
