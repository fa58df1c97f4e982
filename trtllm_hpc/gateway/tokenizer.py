"""The model's own tokenizer: texts to token ids, ids to text, and its special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from trtllm_hpc.client.tokenizer_file import read_tokenizer
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.paths import read_json

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class ModelTokenizer:
    """The tokenizer in a folder with ``tokenizer.json``; read when it is first used.

    Its properties and methods raise ``RequestFailed`` if the folder has none that can be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def _library(self) -> Any:
        return read_tokenizer(self.folder)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The content of ``tokenizer_config.json``; empty without one."""
        return self._object("tokenizer_config.json")

    @cached_property
    def special_tokens(self) -> Mapping[str, str]:
        """The texts of the special tokens by the names that templates use."""
        found = {name: self.config.get(name) for name in _SPECIAL}
        texts = {name: it.get("content") if isinstance(it, dict) else it for name, it in found.items()}
        return {name: str(text) for name, text in texts.items() if text is not None}

    @cached_property
    def end_id(self) -> int | None:
        """Id of the end token, as upstream's ``preprocessing`` finds it."""
        return self._id("eos_token")

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """All tokens that end an answer: a chat model's ``generation_config.json`` may name several."""
        ids = self._object("generation_config.json").get("eos_token_id")
        named = [self.end_id, *(ids if isinstance(ids, list) else [])]
        return frozenset(token for token in named if isinstance(token, int))

    @cached_property
    def pad_id(self) -> int | None:
        """Id of the token that fills up; that of the end token without one, as in ``preprocessing``."""
        found = self._id("pad_token")
        return self.end_id if found is None else found

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, by default with the tokenizer's special tokens."""
        return list(self._library.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; bytes of incomplete letters become U+FFFD."""
        return str(self._library.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def _id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        found: int | None = None if token is None else self._library.token_to_id(token)
        return found

    def _object(self, name: str) -> Mapping[str, Any]:
        try:
            found = read_json(self.folder / name)
        except (ValueError, OSError) as error:
            raise RequestFailed(f"{self.folder / name} cannot be read: {error}") from None
        return found if isinstance(found, dict) else {}


class TextStream:
    """The text of an answer as its tokens come; it ends before the first of ``stops``.

    A letter whose bytes are in several tokens is held back until it is whole, and so is text that may become
    one of the texts to stop at. All parts together are the text of all tokens together, unless these hold
    bytes that are not a letter: some tokenizers decode those by what follows.
    """

    def __init__(self, tokenizer: ModelTokenizer, stops: Sequence[str], *, skip_special_tokens: bool) -> None:
        self._tokenizer, self._stops, self._skip = tokenizer, stops, skip_special_tokens
        self._ids: list[int] = []
        self._begin = self._read = 0
        """A token's text may depend on the one before, so decoding begins at the last part's first token."""
        self._text = ""
        """Text that is decoded, but not returned yet."""
        self.is_stopped = False
        """Whether a text to stop at was found."""

    def add(self, ids: Sequence[int]) -> str:
        """Take in tokens, and return the text that is certain now."""
        self._ids.extend(ids)
        new = self._decoded()
        if new and not new.endswith(_BROKEN):
            self._text += new
            self._begin, self._read = self._read, len(self._ids)
        return self._certain()

    def end(self) -> str:
        """Return what was held back, after the last token."""
        if self.is_stopped:
            return ""
        self._text += self._decoded()
        return self._certain() + self._text

    def _decoded(self) -> str:
        """Return the text of the tokens that were not read yet."""
        # Not the library's DecodeStream: in tokenizers 0.23 it fails for good after bytes that are not UTF-8.
        begin, skip = self._begin, self._skip
        known = self._tokenizer.decode(self._ids[begin : self._read], skip_special_tokens=skip)
        return self._tokenizer.decode(self._ids[begin:], skip_special_tokens=skip)[len(known) :]

    def _certain(self) -> str:
        """Take out the text up to one to stop at, or to what may become one."""
        found = [at for stop in self._stops if (at := self._text.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            part, self._text = self._text[: min(found)], ""
            return part
        begun = (stop[:size] for stop in self._stops for size in range(1, len(stop)))
        held_back = max((len(part) for part in begun if self._text.endswith(part)), default=0)
        end = len(self._text) - held_back
        part, self._text = self._text[:end], self._text[end:]
        return part
