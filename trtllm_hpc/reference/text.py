"""Text to token ids and back: what the models that take or give text have in common.

It uses the ``tokenizers`` library without transformers, so that these
processes start in a fraction of a second and stay small.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.reference.engine_config import plain_path
from trtllm_hpc.reference.generation import NO_END
from trtllm_hpc.reference.requests import Array

TO_PREPROCESSING: Mapping[str, str] = {
    "text_input": "QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
    "prompt_table_extra_id": "PROMPT_TABLE_EXTRA_ID",
}
"""Inputs of text models, and of ``preprocessing`` (``preprocessing/config.pbtxt``, v0.16)."""

FROM_PREPROCESSING: Mapping[str, str] = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
    "OUT_PROMPT_TABLE_EXTRA_IDS": "prompt_table_extra_ids",
}
"""Outputs of ``preprocessing``, and inputs of ``tensorrt_llm`` (``ensemble/config.pbtxt``, v0.16)."""


def parameters_of(args: Mapping[str, str]) -> dict[str, str]:
    """The parameters in the ``config.pbtxt`` of a model; ``args`` are those of its ``initialize``."""
    found = json.loads(args["model_config"])["parameters"]
    return {name: value["string_value"] for name, value in found.items()}


def switch(parameters: Mapping[str, str], name: str, *, default: bool) -> bool:
    """A boolean parameter of ``config.pbtxt``; an empty or missing one has its default."""
    text = parameters.get(name, "").strip().lower()
    return text in ("true", "1", "t", "y", "yes") if text else default


def text_of(name: str, value: bytes) -> str:
    """Decode a text of a request. Raises RequestFailed if it is not UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestFailed(f"{name} is not valid UTF-8: {error}.") from error


def stop_words(tokenizer: ModelTokenizer, rows: Array | None, count: int) -> Array:
    """Words as [prompts, 2, tokens]: the tokens of all words of a prompt, and the end of each, then -1.

    Each word is tokenised by itself, as in ``preprocessing/1/model.py`` of NVIDIA's tensorrtllm_backend
    v0.16.0; after a space a tokenizer may split it in another way. Empty words, which clients send for
    "none", are dropped.
    """
    if rows is None:
        return np.zeros((count, 2, 0), dtype=np.int32)
    encoded = [
        [tokenizer.encode(text_of("stop_words", word), add_special_tokens=False) for word in row if word]
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


class Preprocessor:
    """Tokenises prompts and words, and fills in the tokenizer's own end and pad ids.

    ``parameters`` are those of the model.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.tokenizer = ModelTokenizer(Path(plain_path(parameters["tokenizer_dir"])))
        self._special = switch(parameters, "add_special_tokens", default=True)

    def process(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of ``preprocessing`` for its inputs, both by name.

        Raises:
            RequestFailed: an input is missing, or a text is not UTF-8.
        """
        for name, inner in (("text_input", "QUERY"), ("max_tokens", "REQUEST_OUTPUT_LEN")):
            if inner not in inputs:
                # Triton counts the inputs that must be there, and takes another one for it.
                raise RequestFailed(f"{name} ({inner}) is missing.")
        tokenizer = self.tokenizer
        texts = [text_of("text_input", value) for value in inputs["QUERY"].reshape(-1)]
        prompts = [tokenizer.encode(text, add_special_tokens=self._special) for text in texts]
        count, longest = len(prompts), max(map(len, prompts))
        end_id = NO_END if tokenizer.end_id is None else tokenizer.end_id
        pad_id = 0 if tokenizer.pad_id is None else tokenizer.pad_id
        pad_ids = inputs.get("PAD_ID", _column(pad_id, count))
        return {
            "INPUT_ID": np.array([it + [pad_id] * (longest - len(it)) for it in prompts], dtype=np.int32),
            "REQUEST_INPUT_LEN": np.array([[len(tokens)] for tokens in prompts], dtype=np.int32),
            "REQUEST_OUTPUT_LEN": inputs["REQUEST_OUTPUT_LEN"],
            # As upstream: without a text for the decoder it starts from the pad token.
            "DECODER_INPUT_ID": pad_ids,
            "REQUEST_DECODER_INPUT_LEN": _column(1, count),
            "BAD_WORDS_IDS": np.zeros((count, 2, 0), dtype=np.int32),
            "STOP_WORDS_IDS": stop_words(tokenizer, inputs.get("STOP_WORDS_DICT"), count),
            "EMBEDDING_BIAS": np.zeros((count, 0), dtype=np.float32),
            "OUT_END_ID": inputs.get("END_ID", _column(end_id, count)),
            "OUT_PAD_ID": pad_ids,
        }


def _column(value: int, count: int) -> Array:
    return np.full((count, 1), value, dtype=np.int32)
