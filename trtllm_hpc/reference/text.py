"""Text to token IDs and back: the code that the models with text as input or output share.

It uses the ``tokenizers`` library without transformers, so that these processes start in a fraction of a
second and stay small.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.reference.engine_folder import plain_path
from trtllm_hpc.reference.generation import NO_END
from trtllm_hpc.reference.requests import Array, refuse_batch, refuse_unsupported


def parameters_of(args: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters in a model's ``config.pbtxt``; ``args`` are the arguments of ``initialize``."""
    parameters = json.loads(args["model_config"])["parameters"]
    return {name: value["string_value"] for name, value in parameters.items()}


def switch(parameters: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return a boolean parameter of ``config.pbtxt``, or the default if it is empty or missing."""
    text = parameters.get(name, "").strip().lower()
    return text in ("true", "1", "t", "y", "yes") if text else default


def read_tokenizer_of(parameters: Mapping[str, str]) -> ModelTokenizer:
    """Return the tokenizer of a model's ``tokenizer_dir``. Raises RequestFailed if it cannot be read."""
    tokenizer = ModelTokenizer(Path(plain_path(parameters["tokenizer_dir"])))
    # The file is read on first use, and a server without a tokenizer must not become ready.
    tokenizer.encode("")
    return tokenizer


def stop_words(tokenizer: ModelTokenizer, words: Sequence[str]) -> Array:
    """Return words as an array [1, 2, tokens]: the tokens of all words, and the end of each word, then -1.

    Each word is tokenised separately, as in ``preprocessing/1/model.py`` of NVIDIA's tensorrtllm_backend
    v0.16.0; after a space a tokenizer may split the word differently. Empty words, which clients send for
    "none", are dropped.
    """
    encoded = [tokenizer.encode(word, add_special_tokens=False) for word in words if word]
    flat = [token for tokens in encoded for token in tokens]
    ends = np.full(len(flat), -1)
    ends[: len(encoded)] = np.cumsum([len(tokens) for tokens in encoded])
    return np.array([[flat, ends]], dtype=np.int32)


class Preprocessor:
    """Tokenises a prompt and its stop words, and adds the tokenizer's end and pad ids.

    ``parameters`` are the model's.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.tokenizer = read_tokenizer_of(parameters)
        self._special = switch(parameters, "add_special_tokens", default=True)

    def process(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs of ``preprocessing`` by name, for its inputs by name.

        Raises:
            RequestFailed: an input is missing, requests an unsupported feature, or is not UTF-8.
        """
        for name, inner in (("text_input", "QUERY"), ("max_tokens", "REQUEST_OUTPUT_LEN")):
            if inner not in inputs:
                # Triton only counts the required inputs, so another input can take the place of this one.
                raise RequestFailed(f"{name} ({inner}) is missing.")
        refuse_batch(inputs["QUERY"])
        refuse_unsupported(inputs)
        tokenizer = self.tokenizer
        [text] = _texts("text_input", inputs["QUERY"])
        prompt = tokenizer.encode(text, add_special_tokens=self._special)
        words = _texts("stop_words", inputs.get("STOP_WORDS_DICT", np.empty(0)))
        end_id = NO_END if tokenizer.end_id is None else tokenizer.end_id
        pad_ids = inputs.get("PAD_ID", _one(tokenizer.pad_id or 0))
        return {
            "INPUT_ID": np.array([prompt], dtype=np.int32),
            "REQUEST_INPUT_LEN": _one(len(prompt)),
            "REQUEST_OUTPUT_LEN": inputs["REQUEST_OUTPUT_LEN"],
            # As in upstream's model: without a text for it, the decoder starts from the pad token.
            "DECODER_INPUT_ID": pad_ids,
            "REQUEST_DECODER_INPUT_LEN": _one(1),
            "BAD_WORDS_IDS": np.zeros((1, 2, 0), dtype=np.int32),
            "STOP_WORDS_IDS": stop_words(tokenizer, words),
            "EMBEDDING_BIAS": np.zeros((1, 0), dtype=np.float32),
            "OUT_END_ID": inputs.get("END_ID", _one(end_id)),
            "OUT_PAD_ID": pad_ids,
        }


def _texts(name: str, array: Array) -> list[str]:
    try:
        return [value.decode("utf-8") for value in array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise RequestFailed(f"{name} is not valid UTF-8: {error}.") from error


def _one(value: int) -> Array:
    return np.full((1, 1), value, dtype=np.int32)
