"""Triton model ``preprocessing``: text in, token ids out. Runs in Triton's Python stub."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.engine_config import EngineFolder, EngineInfo, plain_path
from trtllm_hpc.reference.generation import NO_END
from trtllm_hpc.reference.requests import check_parameters
from trtllm_hpc.reference.text import (
    TextTokenizer,
    embedding_bias,
    padded_prompts,
    switch,
    text_of,
    word_lists,
)
from trtllm_hpc.reference.unsupported import refuse_unsupported_text

ONLY_REFUSED = ("DECODER_QUERY", "IMAGE_BYTES", "IMAGE_URL", "VIDEO_BYTES")
"""Inputs that are read to be refused."""


class TritonPythonModel:
    """Tokenises prompts and words, and fills in the tokenizer's own end and pad ids."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the tokenizer, and how long the engine's prompts may be."""
        found = json.loads(args["model_config"])["parameters"]
        parameters = {key: value["string_value"] for key, value in found.items()}
        self._special = switch(parameters, "add_special_tokens", default=True)
        self._tokenizer = TextTokenizer(plain_path(parameters["tokenizer_dir"]))
        engine = EngineFolder(plain_path(parameters["gpt_model_path"]))
        self._max_input_len = EngineInfo.read(engine).max_input_len

    def execute(self, triton_requests: list[Any]) -> list[Any]:
        """Answer each request, or refuse it with a sentence."""
        return [self._respond(request) for request in triton_requests]

    def _respond(self, request: Any) -> Any:
        try:
            check_parameters(request)
            refuse_unsupported_text({name: _array(request, name) for name in ONLY_REFUSED})
            arrays = self._process(request)
        except RequestFailed as error:
            refusal = pb_utils.TritonError(error.message, pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=refusal)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items()])

    def _process(self, request: Any) -> dict[str, Any]:
        tokenizer = self._tokenizer
        prompts = [self._prompt(text) for text in _array(request, "QUERY").reshape(-1)]
        count = len(prompts)
        end_id = NO_END if tokenizer.end_id is None else tokenizer.end_id
        # As in transformers and upstream's tokenising models: the end token is used if there is no pad token.
        pad_id = next((token for token in (tokenizer.pad_id, tokenizer.end_id) if token is not None), 0)
        pad_ids = _given(request, "PAD_ID", pad_id, count)
        return {
            "INPUT_ID": padded_prompts(prompts, pad_id),
            "REQUEST_INPUT_LEN": np.array([[len(tokens)] for tokens in prompts], dtype=np.int32),
            "REQUEST_OUTPUT_LEN": _array(request, "REQUEST_OUTPUT_LEN"),
            # As upstream: without a text for the decoder it starts from the pad token.
            "DECODER_INPUT_ID": pad_ids,
            "REQUEST_DECODER_INPUT_LEN": np.ones((count, 1), dtype=np.int32),
            "BAD_WORDS_IDS": word_lists(tokenizer, "bad_words", _array(request, "BAD_WORDS_DICT"), count),
            "STOP_WORDS_IDS": word_lists(tokenizer, "stop_words", _array(request, "STOP_WORDS_DICT"), count),
            "EMBEDDING_BIAS": embedding_bias(
                tokenizer,
                _array(request, "EMBEDDING_BIAS_WORDS"),
                _array(request, "EMBEDDING_BIAS_WEIGHTS"),
                count,
            ),
            "OUT_END_ID": _given(request, "END_ID", end_id, count),
            "OUT_PAD_ID": pad_ids,
        }

    def _prompt(self, text: bytes) -> list[int]:
        return self._tokenizer.encode_bounded(
            text_of("text_input", text),
            self._max_input_len,
            name="The prompt",
            limit=f"this engine was built for max_input_len {self._max_input_len}",
            add_special_tokens=self._special,
        )


def _array(request: Any, name: str) -> Any:
    """An input as an array; ``None`` if it was not sent."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def _given(request: Any, name: str, default: int, count: int) -> Any:
    array = _array(request, name)
    return np.full((count, 1), default, dtype=np.int32) if array is None else array
