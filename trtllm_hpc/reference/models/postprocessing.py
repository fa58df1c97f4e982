"""Triton model ``postprocessing``: token IDs in, text out. Runs in Triton's Python stub."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtllm_hpc.reference.text import parameters_of, read_tokenizer_of, switch


class TritonPythonModel:
    """Turns each sequence of tokens into text."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the tokenizer."""
        parameters = parameters_of(args)
        self._skip_special = switch(parameters, "skip_special_tokens", default=True)
        self._tokenizer = read_tokenizer_of(parameters)

    def execute(self, triton_requests: list[Any]) -> list[Any]:
        """Decode the sequences of each request into one row of texts: beam after beam, prompt after prompt.

        This is upstream's shape. With a batch dimension, clients would get each text as an array.
        """
        responses, skip = [], self._skip_special
        for request in triton_requests:
            tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
            lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
            texts = [
                self._tokenizer.decode(beam[:length].tolist(), skip_special_tokens=skip).encode()
                for beams, row in zip(tokens, lengths, strict=True)
                for beam, length in zip(beams, row, strict=True)
            ]
            output = pb_utils.Tensor("OUTPUT", np.array(texts, dtype=np.object_))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
