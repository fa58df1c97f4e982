"""Sources of small Python models for a repository that a real tritonserver loads.

They answer with a parameter of their own configuration, so that a test sees
values arrive in the models and through the ensemble.
"""

from __future__ import annotations

_HEAD = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


def tensor(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        self.parameters = {key: value["string_value"] for key, value in self.config["parameters"].items()}
"""

PREPROCESSING = (
    _HEAD
    + """
        # As upstream's: it has to be there, and to be empty.
        assert self.parameters["visual_model_path"] == ""

    def execute(self, requests):
        answers = []
        for request in requests:
            text = tensor(request, "QUERY")[0][0]
            words = [
                pb_utils.Tensor("INPUT_ID", np.array([list(text)], dtype=np.int32)),
                pb_utils.Tensor("REQUEST_INPUT_LEN", np.array([[len(text)]], dtype=np.int32)),
                pb_utils.Tensor("REQUEST_OUTPUT_LEN", tensor(request, "REQUEST_OUTPUT_LEN").astype(np.int32)),
            ]
            answers.append(pb_utils.InferenceResponse(words))
        return answers
"""
)

TENSORRT_LLM = (
    _HEAD
    + '''
    def execute(self, requests):
        """What it was asked, then its engine's folder, as bytes."""
        answers = []
        for request in requests:
            asked = bytes(tensor(request, "input_ids").astype(np.uint8).flatten())
            said = asked + b"|" + self.parameters["gpt_model_path"].encode("utf-8")
            answers.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("output_ids", np.array([list(said)], dtype=np.int32)),
                        pb_utils.Tensor("sequence_length", np.array([[len(said)]], dtype=np.int32)),
                        pb_utils.Tensor("context_logits", np.zeros((1, 1), dtype=np.float32)),
                    ]
                )
            )
        return answers
'''
)

POSTPROCESSING = (
    _HEAD
    + """
    def execute(self, requests):
        answers = []
        for request in requests:
            text = bytes(tensor(request, "TOKENS_BATCH").astype(np.uint8).flatten())
            text += b"|" + self.parameters["tokenizer_dir"].encode("utf-8")
            answers.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[text]], dtype=np.object_))])
            )
        return answers
"""
)

TENSORRT_LLM_BLS = (
    _HEAD
    + """
    def ask(self, model, outputs, *inputs):
        request = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=outputs, inputs=list(inputs)
        )
        answer = request.exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        return [pb_utils.get_output_tensor_by_name(answer, name).as_numpy() for name in outputs]

    def execute(self, requests):
        answers = []
        for request in requests:
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
            answers.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("text_output", text),
                        pb_utils.Tensor("context_logits", np.zeros((1, 1), dtype=np.float32)),
                    ]
                )
            )
        return answers
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
