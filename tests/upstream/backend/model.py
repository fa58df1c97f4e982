"""The backend ``tensorrtllm``, a Python-based backend of Triton: inputs, outputs, parameters as upstream."""

from __future__ import annotations

import json
import os
import uuid
from multiprocessing.connection import Client
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One instance of a model."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        values = {key: value["string_value"] for key, value in parameters.items()}
        assert values["gpt_model_type"] in ("inflight_fused_batching", "inflight_batching", "V1")
        self.name = args["model_instance_name"]
        number = int(self.name.rpartition("_")[2])
        self.server = Client("\0" + os.environ["STAND_IN_SOCKET"], "AF_UNIX")
        gpus, ranks = (of_instance(values.get(key), number) for key in ("gpu_device_ids", "participant_ids"))
        self.call("load", self.name, values["gpt_model_path"], gpus, ranks)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        kind = json.loads(request.parameters() or "{}").get("request_type", "context_and_generation")
        asked = {
            "kind": {"context_only": "context", "generation_only": "generation"}.get(kind, "both"),
            "tokens": values_of(request, "input_ids"),
            "count": values_of(request, "request_output_len")[0],
            "key": uuid.uuid4().hex,
        }
        if kind == "generation_only":
            asked.update(json.loads(bytes(values_of(request, "context_phase_params"))))
        try:
            answer = self.call("ask", self.name, asked)
        except pb_utils.TritonModelException as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        phase = json.dumps({"key": asked["key"], "holders": answer["holders"]}).encode()
        tokens = answer["tokens"]
        return pb_utils.InferenceResponse(
            [
                made("output_ids", [tokens], np.int32),
                made("sequence_length", [[len(tokens)]], np.int32),
                made("context_phase_params", [list(phase)], np.uint8),
            ]
        )

    def call(self, method: str, *arguments: Any) -> Any:
        self.server.send((method, arguments))
        fault, result = self.server.recv()
        if fault is not None:
            raise pb_utils.TritonModelException(fault)
        return result


def of_instance(text: str | None, number: int) -> list[int]:
    """The numbers of one instance: ``0,1;2,3`` has those of two."""
    if not text:
        return []
    return [int(word) for word in text.split(";")[number].split(",")]


def values_of(request: Any, name: str) -> list[int]:
    return [int(value) for value in pb_utils.get_input_tensor_by_name(request, name).as_numpy().flatten()]


def made(name: str, values: Any, kind: Any) -> Any:
    return pb_utils.Tensor(name, np.array(values, dtype=kind))
