"""Sources of small Python models for a repository that a real tritonserver loads.

They answer with a parameter of their own configuration, so that a test sees
values arrive in the models and through the ensemble.
"""

from __future__ import annotations

HEAD = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


def tensor(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def characters(request, name):
    return bytes(tensor(request, name).astype(np.uint8).flatten())


def made(name, values, kind=np.int32):
    return pb_utils.Tensor(name, np.array(values, dtype=kind))


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.parameters = {key: value["string_value"] for key, value in parameters.items()}

    def execute(self, requests):
        return [pb_utils.InferenceResponse(self.answer(request)) for request in requests]

    def answer(self, request):
"""

PREPROCESSING = (
    HEAD
    + """
        # As upstream's: it has to be there, and to be empty.
        assert self.parameters["visual_model_path"] == ""
        text = tensor(request, "QUERY")[0][0]
        return [
            made("INPUT_ID", [list(text)]),
            made("REQUEST_INPUT_LEN", [[len(text)]]),
            made("REQUEST_OUTPUT_LEN", tensor(request, "REQUEST_OUTPUT_LEN")),
        ]
"""
)

TENSORRT_LLM = (
    HEAD
    + """
        # What it was asked, then its engine's folder.
        said = characters(request, "input_ids") + b"|" + self.parameters["gpt_model_path"].encode("utf-8")
        return [
            made("output_ids", [list(said)]),
            made("sequence_length", [[len(said)]]),
            made("context_logits", [[0]], np.float32),
        ]
"""
)

POSTPROCESSING = (
    HEAD
    + """
        text = characters(request, "TOKENS_BATCH") + b"|" + self.parameters["tokenizer_dir"].encode("utf-8")
        return [made("OUTPUT", [[text]], np.object_)]
"""
)

TENSORRT_LLM_BLS = (
    HEAD
    + """
        ids, length, wanted = self.ask(
            "preprocessing",
            ["INPUT_ID", "REQUEST_INPUT_LEN", "REQUEST_OUTPUT_LEN"],
            pb_utils.Tensor("QUERY", tensor(request, "text_input")),
            pb_utils.Tensor("REQUEST_OUTPUT_LEN", tensor(request, "max_tokens")),
        )
        ids, length = self.ask(
            self.parameters["tensorrt_llm_model_name"],
            ["output_ids", "sequence_length"],
            pb_utils.Tensor("input_ids", ids),
            pb_utils.Tensor("input_lengths", length),
            pb_utils.Tensor("request_output_len", wanted),
        )
        (text,) = self.ask(
            "postprocessing",
            ["OUTPUT"],
            pb_utils.Tensor("TOKENS_BATCH", ids),
            pb_utils.Tensor("SEQUENCE_LENGTH", length),
        )
        return [pb_utils.Tensor("text_output", text), made("context_logits", [[0]], np.float32)]

    def ask(self, model, outputs, *inputs):
        request = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=outputs, inputs=list(inputs)
        )
        answer = request.exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        return [pb_utils.get_output_tensor_by_name(answer, name).as_numpy() for name in outputs]
"""
)

SOURCES = {
    "preprocessing": PREPROCESSING,
    "tensorrt_llm": TENSORRT_LLM,
    "postprocessing": POSTPROCESSING,
    "tensorrt_llm_bls": TENSORRT_LLM_BLS,
}


LLM_API = """
import os

import mpi4py.MPI  # as upstream's does
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(args["model_repository"], "1", "model.yaml")) as file:
            self.arguments = file.read()

    def execute(self, requests):
        answers = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0]
            said = np.array([text + b"|" + self.arguments.encode("utf-8")], dtype=np.object_)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", said)]))
        return answers
"""
"""The LLM API's model: answers with what it was asked and with its ``model.yaml``."""
