"""The model's own tokenizer: texts to token IDs, ids to text, and its special tokens."""

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
    """The tokenizer in a folder with ``tokenizer.json``; the file is read on first use.

    The properties and methods raise ``RequestFailed`` if no tokenizer in the folder can be read.
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
        """Texts of the special tokens by the names that chat templates use."""
        tokens = {name: self.config.get(name) for name in _SPECIAL}
        texts = {
            name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()
        }
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
        """Id of the padding token; without one, id of the end token, as in ``preprocessing``."""
        pad = self._id("pad_token")
        return self.end_id if pad is None else pad

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token IDs of a text, by default with the tokenizer's special tokens."""
        return list(self._library.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token IDs; bytes of incomplete letters become U+FFFD."""
        return str(self._library.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def _id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        number: int | None = None if token is None else self._library.token_to_id(token)
        return number

    def _object(self, name: str) -> Mapping[str, Any]:
        try:
            content = read_json(self.folder / name)
        except (ValueError, OSError) as error:
            raise RequestFailed(f"{self.folder / name} cannot be read: {error}") from None
        return content if isinstance(content, dict) else {}


class TextStream:
    """The text of an answer while its tokens arrive; the text ends before the first of ``stops``.

    A letter whose bytes are in several tokens is held back until it is complete, and so is text that may
    become one of the texts to stop at. All parts together are the text of all tokens together, unless the
    tokens contain bytes that are not a letter: some tokenizers decode those by what follows.
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
        """Add tokens, and return the text that is certain now."""
        self._ids.extend(ids)
        new = self._decoded()
        if new and not new.endswith(_BROKEN):
            self._text += new
            self._begin, self._read = self._read, len(self._ids)
        return self._certain()

    def end(self) -> str:
        """Return the text that was held back, after the last token."""
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
        """Remove and return the text before a text to stop at, or before the beginning of one."""
        stops = [at for stop in self._stops if (at := self._text.find(stop)) >= 0]
        if stops:
            self.is_stopped = True
            part, self._text = self._text[: min(stops)], ""
            return part
        begun = (stop[:size] for stop in self._stops for size in range(1, len(stop)))
        held_back = max((len(part) for part in begun if self._text.endswith(part)), default=0)
        end = len(self._text) - held_back
        part, self._text = self._text[:end], self._text[end:]
        return part
