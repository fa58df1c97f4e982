"""Text to token ids and back: what the models that take or give text have in common.

It uses the ``tokenizers`` library without transformers, so that these
processes start in a fraction of a second and stay small.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trtllm_hpc.errors import RequestFailed, StartFailed
from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.reference.engine_config import EngineFolder, EngineInfo, plain_path
from trtllm_hpc.reference.generation import NO_END
from trtllm_hpc.reference.inputs import Array, padded
from trtllm_hpc.reference.requests import LONGEST_WORD, MOST_WORDS

_ON = frozenset({"true", "1", "t", "y", "yes"})
_OFF = frozenset({"false", "0", "f", "n", "no"})


_LETTERS_PER_TOKEN = 8
"""Twice as many as in ordinary English: a text with more is looked at from its start first."""

_SEAM = 64
"""Tokens by which the start of a text may differ from the same letters in the whole text."""


class TextTokenizer(ModelTokenizer):
    """The tokenizer in a folder with ``tokenizer.json`` and ``tokenizer_config.json``, read at once.

    Raises StartFailed if there is no tokenizer, or it cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(Path(folder))
        try:
            # Each is read or computed when it is first used, and then kept.
            _ = self.vocab_size, self.longest_token, self.end_id, self.pad_id
        except RequestFailed as error:
            raise StartFailed(error.message, hint="check tokenizer_dir") from error

    def encode_bounded(
        self, text: str, most_tokens: int, *, name: str, limit: str, add_special_tokens: bool = True
    ) -> list[int]:
        """Token ids of a text of a request, which is not tokenised if it is far too long.

        Tokenising takes time and memory by the letter, and other requests wait for it. A text that is only a
        little too long is returned: whoever takes the tokens counts them. Raises RequestFailed if it needs
        more than ``most_tokens`` tokens; ends with ``limit``.
        """
        if len(text) > most_tokens * self.longest_token:
            raise RequestFailed(
                f"{name} has {len(text)} letters, more than {most_tokens} tokens can stand for; {limit}."
            )
        start = text[: most_tokens * _LETTERS_PER_TOKEN + _SEAM]
        if len(start) < len(text):
            found = len(self.encode(start, add_special_tokens=False))
            if found > most_tokens + _SEAM:
                raise RequestFailed(
                    f"{name} has {len(text)} letters, and the first {len(start)} already make {found} "
                    f"tokens; {limit}."
                )
        return self.encode(text, add_special_tokens=add_special_tokens)


def switch(parameters: Mapping[str, str], name: str, *, default: bool) -> bool:
    """A boolean parameter of ``config.pbtxt``; an empty or missing one has its default.

    Raises StartFailed if it is neither true nor false.
    """
    text = parameters.get(name, "").strip().lower()
    if not text:
        return default
    if text not in _ON | _OFF:
        raise StartFailed(f"The model's parameter {name} is {text!r}; it must be true or false.")
    return text in _ON


def text_of(name: str, value: bytes) -> str:
    """Decode a text of a request. Raises RequestFailed if it is not UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestFailed(f"{name} is not valid UTF-8: {error}.") from error


def word_lists(tokenizer: TextTokenizer, name: str, rows: Array | None, count: int) -> Array:
    """Words as [prompts, 2, tokens]: the tokens of all words of a prompt, and the end of each, then -1.

    Each word is tokenised by itself, as in ``preprocessing/1/model.py`` of NVIDIA's tensorrtllm_backend
    v0.16.0; after a space a tokenizer may split it in another way. Empty words, which clients send for
    "none", are dropped. Raises RequestFailed if there are too many words, or one is too long.
    """
    if rows is None:
        return np.zeros((count, 2, 0), dtype=np.int32)
    _check_words(name, rows, MOST_WORDS)
    encoded = [[tokens for word in row if (tokens := _word(tokenizer, name, word))] for row in rows]
    width = max(1, *(sum(map(len, words)) for words in encoded)) if encoded else 1
    lists = np.zeros((len(encoded), 2, width), dtype=np.int32)
    lists[:, 1] = -1
    for row, words in zip(lists, encoded, strict=True):
        flat = [token for word in words for token in word]
        row[0, : len(flat)] = flat
        row[1, : len(words)] = np.cumsum([len(word) for word in words], dtype=np.int32)
    return lists


def _check_words(name: str, rows: Array, most: int) -> None:
    if rows.shape[1] > most:
        raise RequestFailed(f"{name} holds {rows.shape[1]} words; it may hold {most} at most.")


def _word(tokenizer: TextTokenizer, name: str, word: bytes) -> list[int]:
    return tokenizer.encode_bounded(
        text_of(name, word),
        LONGEST_WORD,
        name=f"A word of {name}",
        limit=f"it may have {LONGEST_WORD} tokens at most",
        add_special_tokens=False,
    )


class Preprocessor:
    """Tokenises prompts and words, and fills in the tokenizer's own end and pad ids.

    Raises StartFailed if there is no tokenizer or no engine, or a parameter of the model is wrong.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.tokenizer = TextTokenizer(plain_path(parameters["tokenizer_dir"]))
        self._special = switch(parameters, "add_special_tokens", default=True)
        engine = EngineFolder(plain_path(parameters["gpt_model_path"]))
        self._max_input_len = EngineInfo.read(engine).max_input_len

    def process(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of ``preprocessing`` for its inputs, both by name.

        Raises:
            RequestFailed: an input is missing, or a text is not UTF-8 or too long.
        """
        for name, inner in (("text_input", "QUERY"), ("max_tokens", "REQUEST_OUTPUT_LEN")):
            if inner not in inputs:
                # Triton counts the inputs that must be there, and takes another one for it.
                raise RequestFailed(f"{name} ({inner}) is missing.")
        tokenizer = self.tokenizer
        prompts = [self._prompt(text) for text in inputs["QUERY"].reshape(-1)]
        count = len(prompts)
        end_id = NO_END if tokenizer.end_id is None else tokenizer.end_id
        pad_id = 0 if tokenizer.pad_id is None else tokenizer.pad_id
        pad_ids = inputs.get("PAD_ID", _column(pad_id, count))
        return {
            "INPUT_ID": np.array(padded(prompts, pad_id), dtype=np.int32),
            "REQUEST_INPUT_LEN": np.array([[len(tokens)] for tokens in prompts], dtype=np.int32),
            "REQUEST_OUTPUT_LEN": inputs["REQUEST_OUTPUT_LEN"],
            # As upstream: without a text for the decoder it starts from the pad token.
            "DECODER_INPUT_ID": pad_ids,
            "REQUEST_DECODER_INPUT_LEN": _column(1, count),
            "BAD_WORDS_IDS": np.zeros((count, 2, 0), dtype=np.int32),
            "STOP_WORDS_IDS": word_lists(tokenizer, "stop_words", inputs.get("STOP_WORDS_DICT"), count),
            "EMBEDDING_BIAS": np.zeros((count, 0), dtype=np.float32),
            "OUT_END_ID": inputs.get("END_ID", _column(end_id, count)),
            "OUT_PAD_ID": pad_ids,
        }

    def _prompt(self, text: bytes) -> list[int]:
        return self.tokenizer.encode_bounded(
            text_of("text_input", text),
            self._max_input_len,
            name="The prompt",
            limit=f"this engine was built for max_input_len {self._max_input_len}",
            add_special_tokens=self._special,
        )


def _column(value: int, count: int) -> Array:
    return np.full((count, 1), value, dtype=np.int32)
