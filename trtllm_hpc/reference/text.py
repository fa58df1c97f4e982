"""Text to token ids and back: what the models that take or give text have in common.

It uses the ``tokenizers`` library without transformers, so that these
processes start in a fraction of a second and stay small.
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
    """The parameters in the ``config.pbtxt`` of a model; ``args`` are those of its ``initialize``."""
    found = json.loads(args["model_config"])["parameters"]
    return {name: value["string_value"] for name, value in found.items()}


def switch(parameters: Mapping[str, str], name: str, *, default: bool) -> bool:
    """A boolean parameter of ``config.pbtxt``; an empty or missing one has its default."""
    text = parameters.get(name, "").strip().lower()
    return text in ("true", "1", "t", "y", "yes") if text else default


def read_tokenizer_of(parameters: Mapping[str, str]) -> ModelTokenizer:
    """The tokenizer that the parameters of a model name. Raises RequestFailed if it cannot be read."""
    tokenizer = ModelTokenizer(Path(plain_path(parameters["tokenizer_dir"])))
    tokenizer.encode("")  # it reads its file when it is used, and a server without one must not become ready
    return tokenizer


def stop_words(tokenizer: ModelTokenizer, words: Sequence[str]) -> Array:
    """Words as [1, 2, tokens]: the tokens of all words, and the end of each, then -1.

    Each word is tokenised by itself, as in ``preprocessing/1/model.py`` of NVIDIA's tensorrtllm_backend
    v0.16.0; after a space a tokenizer may split it in another way. Empty words, which clients send for
    "none", are dropped.
    """
    encoded = [tokenizer.encode(word, add_special_tokens=False) for word in words if word]
    flat = [token for tokens in encoded for token in tokens]
    ends = np.full(len(flat), -1)
    ends[: len(encoded)] = np.cumsum([len(tokens) for tokens in encoded])
    return np.array([[flat, ends]], dtype=np.int32)


class Preprocessor:
    """Tokenises a prompt and its words, and fills in the tokenizer's own end and pad ids.

    ``parameters`` are those of the model.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.tokenizer = read_tokenizer_of(parameters)
        self._special = switch(parameters, "add_special_tokens", default=True)

    def process(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of ``preprocessing`` for its inputs, both by name.

        Raises:
            RequestFailed: an input is missing or asks for what this backend lacks, or a text is not UTF-8.
        """
        for name, inner in (("text_input", "QUERY"), ("max_tokens", "REQUEST_OUTPUT_LEN")):
            if inner not in inputs:
                # Triton counts the inputs that must be there, and takes another one for it.
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
            # As upstream: without a text for the decoder it starts from the pad token.
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
