"""Triton model ``preprocessing``: text in, token IDs out. Runs in Triton's Python stub."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.text import Preprocessor, parameters_of


class TritonPythonModel:
    """Tokenises prompts and stop words, and adds the tokenizer's end and pad ids."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the tokenizer."""
        self._preprocessor = Preprocessor(parameters_of(args))

    def execute(self, triton_requests: list[Any]) -> list[Any]:
        """Answer each request, or refuse it with an error message."""
        responses = []
        for request in triton_requests:
            try:
                arrays = self._preprocessor.process(
                    {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
                )
                tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
                responses.append(pb_utils.InferenceResponse(tensors))
            except RequestFailed as error:
                refusal = pb_utils.TritonError(error.message, pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=refusal))
        return responses
