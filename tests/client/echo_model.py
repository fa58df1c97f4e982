"""A text model that is controlled by its prompt. Runs in Triton's Python stub.

``sleep S: text`` is answered after S seconds, ``fail: text`` with the error
``text``; any other prompt comes back in upper case. The model ``mirror``
answers with its inputs as JSON. A decoupled model sends the text letter by letter,
the third one 0.1 s late if the prompt begins with ``slow``. For token IDs a decoupled model
sends the numbers from 1 on, each in its own response if ``streaming`` is set,
but joined by one, two and three if the first id is 0. The model ``joined`` sends
bytes so, each response decoded by itself.
"""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._joins = config["name"] == "joined"
        self._mirrors = config["name"] == "mirror"
        self._outputs = [output["name"] for output in config["output"]]
        self._decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        if self._decoupled:
            for request in requests:
                self._stream(request)
            return None
        return [self._answer(request) for request in requests]

    def _stream(self, request: Any) -> None:
        sender = request.get_response_sender()
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if "input_ids" in inputs:
            for ids in _numbers(inputs):
                sender.send(_ids(ids, ids.size))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        text = inputs["text_input"].reshape(-1)[0].decode()
        if text.startswith("fail: "):
            error = pb_utils.InferenceResponse(error=pb_utils.TritonError(text[6:]))
            sender.send(error, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        if self._joins:
            for some in _joined(text.encode()):
                sender.send(pb_utils.InferenceResponse([_text(some.decode(errors="replace"))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        for number, letter in enumerate(text.upper(), start=1):
            if number == 3 and text.startswith("slow"):
                time.sleep(0.1)
            sender.send(
                pb_utils.InferenceResponse(
                    [
                        _text(letter),
                        pb_utils.Tensor("sequence_length", np.array([[number]], dtype=np.int32)),
                    ]
                )
            )
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _answer(self, request: Any) -> Any:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if self._mirrors:
            return pb_utils.InferenceResponse([_text(_as_json(inputs))])
        if "QUERY" in inputs:
            return _preprocessed(inputs)
        if "input_ids" in inputs:
            return _generated(inputs)
        prompt = inputs["text_input"].reshape(-1)[0].decode()
        command, _, rest = prompt.partition(": ")
        if command == "fail":
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(rest))
        if command.startswith("sleep "):
            time.sleep(float(command.split()[1]))
        tensors = [_text(prompt.upper())]
        if "sequence_length" in self._outputs:
            tensors.append(pb_utils.Tensor("sequence_length", _length(inputs) - 1))
        return pb_utils.InferenceResponse(tensors)


def _as_json(inputs: dict[str, Any]) -> str:
    return json.dumps({name: _readable(array.tolist()) for name, array in inputs.items()})


def _readable(value: Any) -> Any:
    """Texts instead of bytes, in lists of lists."""
    if isinstance(value, list):
        return [_readable(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _text(text: str) -> Any:
    return pb_utils.Tensor("text_output", np.array([[text.encode()]], dtype=np.object_))


def _joined(items: Any) -> list[Any]:
    """Pieces of one, two and three items in turn."""
    ends = [0]
    while ends[-1] < len(items):
        ends.append(ends[-1] + (len(ends) - 1) % 3 + 1)
    return [items[begin:end] for begin, end in pairwise(ends)]


def _length(inputs: dict[str, Any]) -> Any:
    name = "max_tokens" if "max_tokens" in inputs else "sampling_param_max_tokens"
    return inputs[name].astype(np.int32)


def _preprocessed(inputs: dict[str, Any]) -> Any:
    """One token id a byte."""
    ids = np.frombuffer(inputs["QUERY"].reshape(-1)[0], dtype=np.uint8).astype(np.int32)[None]
    length = np.array([[ids.size]], dtype=np.int32)
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor("INPUT_ID", ids), pb_utils.Tensor("REQUEST_INPUT_LEN", length)]
    )


def _generated(inputs: dict[str, Any]) -> Any:
    """The input, then two tokens fewer than requested: this model stops early."""
    new = np.full((1, inputs["request_output_len"].item() - 2), 7, dtype=np.int32)
    ids = np.concatenate([inputs["input_ids"], new], axis=1)
    return _ids(ids, ids.size)


def _numbers(inputs: dict[str, Any]) -> list[Any]:
    """The numbers from 1 to the requested one: one by one, joined, or all at once."""
    numbers = np.arange(1, inputs["request_output_len"].item() + 1, dtype=np.int32)
    if "streaming" not in inputs or not inputs["streaming"].item():
        return [numbers[None]]
    pieces = _joined(numbers) if inputs["input_ids"].flat[0] == 0 else np.split(numbers, numbers.size)
    return [piece[None] for piece in pieces]


def _ids(ids: Any, length: int) -> Any:
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("output_ids", ids[None]),
            pb_utils.Tensor("sequence_length", np.array([[length]], dtype=np.int32)),
        ]
    )
