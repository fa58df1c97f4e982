"""A Triton model that replays what TensorRT-LLM answers and the reference backend does not compute.

Beams and LoRA adapters, with the names and shapes of upstream's text models. Runs in Triton's Python
stub.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

PLACES = 8
"""Adapters that are known at once."""
UNKNOWN = "LoRA task {} not found in cache. Please send LoRA weights with request"


class TritonPythonModel:
    """Answers each request with one response."""

    def initialize(self, args: dict[str, str]) -> None:
        self._adapters: dict[int, bytes] = {}

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            try:
                found = self._answer(inputs)
                tensors = [pb_utils.Tensor(name, array) for name, array in found.items()]
                wanted = request.requested_output_names()
                response = pb_utils.InferenceResponse([it for it in tensors if it.name() in wanted])
            except KeyError as unknown:
                refusal = pb_utils.TritonError(UNKNOWN.format(unknown), pb_utils.TritonError.INVALID_ARG)
                response = pb_utils.InferenceResponse(error=refusal)
            sender = request.get_response_sender()
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _answer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        text = inputs["text_input"].item()
        if "lora_task_id" in inputs:
            text += self._adapter(int(inputs["lora_task_id"].item()), inputs.get("lora_weights"))
        if np.any(inputs.get("bad_words", b"")):
            text += b" without " + b", ".join(inputs["bad_words"].ravel())
        width = int(inputs["beam_width"].item()) if "beam_width" in inputs else 1
        found: dict[str, Any] = {
            "text_output": np.array([text + b" %d" % beam for beam in range(width)], dtype=np.object_)
        }
        return found

    def _adapter(self, number: int, weights: Any) -> bytes:
        if weights is not None:
            self._adapters[number] = b" by %d" % int(np.abs(weights).sum())
        answer = self._adapters.pop(number)
        self._adapters[number] = answer
        while len(self._adapters) > PLACES:
            del self._adapters[next(iter(self._adapters))]
        return answer
