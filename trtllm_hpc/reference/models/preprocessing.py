"""Triton model ``preprocessing``: text in, token ids out. Runs in Triton's Python stub."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.requests import NO_END, refuse_parameters
from trtllm_hpc.reference.stub_paths import plain_path
from trtllm_hpc.reference.text import TextTokenizer, only_text, refuse_words


class TritonPythonModel:
    """Tokenises prompts and fills in the tokenizer's own end and pad ids."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the tokenizer."""
        parameters = json.loads(args["model_config"])["parameters"]
        self._tokenizer = TextTokenizer(plain_path(parameters["tokenizer_dir"]["string_value"]))

    def execute(self, triton_requests: list[Any]) -> list[Any]:
        """Answer each request, or refuse it with a sentence."""
        return [self._respond(request) for request in triton_requests]

    def _respond(self, request: Any) -> Any:
        try:
            arrays = self._process(request)
        except RequestFailed as error:
            refusal = pb_utils.TritonError(error.message, pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=refusal)
        tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
        return pb_utils.InferenceResponse(tensors)

    def _process(self, request: Any) -> dict[str, Any]:
        refuse_parameters(json.loads(request.parameters() or "{}"))
        prompt = only_text(_values(request, "QUERY"))
        refuse_words("bad_words", _values(request, "BAD_WORDS_DICT"))
        refuse_words("stop_words", _values(request, "STOP_WORDS_DICT"))
        tokens = self._tokenizer.encode(prompt)
        pad_id = 0 if self._tokenizer.pad_id is None else self._tokenizer.pad_id
        end_id = NO_END if self._tokenizer.end_id is None else self._tokenizer.end_id
        numbers = {
            "REQUEST_INPUT_LEN": len(tokens),
            "REQUEST_OUTPUT_LEN": _values(request, "REQUEST_OUTPUT_LEN")[0],
            "OUT_END_ID": next(iter(_values(request, "END_ID")), end_id),
            "OUT_PAD_ID": next(iter(_values(request, "PAD_ID")), pad_id),
        }
        arrays = {name: np.array([[number]], dtype=np.int32) for name, number in numbers.items()}
        return {"INPUT_ID": np.array([tokens], dtype=np.int32), **arrays}


def _values(request: Any, name: str) -> list[Any]:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return [] if tensor is None else list(tensor.as_numpy().reshape(-1).tolist())
