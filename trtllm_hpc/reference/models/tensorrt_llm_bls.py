"""Triton model ``tensorrt_llm_bls``: text in, text out, by ``tensorrt_llm``. Runs in Triton's Python stub."""

from __future__ import annotations

import faulthandler
import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.requests import refuse_unsupported
from trtllm_hpc.reference.text import Preprocessor, parameters_of, switch

_TO_PREPROCESSING = {
    "text_input": "QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "stop_words": "STOP_WORDS_DICT",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
}
"""Inputs of ``preprocessing`` by the inputs of this model (``preprocessing/config.pbtxt``, v0.16)."""
_FROM_PREPROCESSING = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "STOP_WORDS_IDS": "stop_words_list",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}
"""Inputs of ``tensorrt_llm`` by the outputs of ``preprocessing`` (``ensemble/config.pbtxt``, v0.16)."""
_TO_CORE = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
}
"""Inputs of ``tensorrt_llm`` by the inputs of this model, where the names differ."""
_ONLY_HERE = frozenset(
    {
        *("bad_words", "embedding_bias_words", "embedding_bias_weights", "decoder_text_input"),
        *("image_input", "image_bytes_input", "image_url_input", "video_bytes_input"),
        *("prompt_table_extra_id", "num_draft_tokens", "use_draft_logits"),
    }
)
"""Inputs that ``tensorrt_llm`` does not have; values that request something are refused earlier."""


class TritonPythonModel:
    """Sends one response for each sequence, or a response for new tokens if the request is streaming."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters and the tokenizer."""
        # A crash of the stub leaves a traceback in the rank's log.
        faulthandler.enable()
        config, parameters = json.loads(args["model_config"]), parameters_of(args)
        self._model = parameters["tensorrt_llm_model_name"]
        self._decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self._preprocessor = Preprocessor(parameters)
        self._skips = switch(parameters, "skip_special_tokens", default=True)
        self._accumulates = switch(parameters, "accumulate_tokens", default=False)

    def execute(self, triton_requests: list[Any]) -> None:
        """Answer the requests one by one: Triton 2.51 crashes if several threads call other models."""
        for request in triton_requests:
            sender = request.get_response_sender()
            try:
                self._answer(request, sender)
            except RequestFailed as refusal:
                _fail(sender, pb_utils.TritonError(refusal.message, pb_utils.TritonError.INVALID_ARG))
            except Exception as failure:  # noqa: BLE001 - the client must get an error, whatever happens
                _fail(sender, pb_utils.TritonError(f"The request failed: {failure}"))

    def _answer(self, request: Any, sender: Any) -> None:
        """Send a text in place of the tokens of each response.

        Tokens that are decoded separately may begin or end within a letter, and lose the space before them,
        as in upstream's BLS model. With accumulation, each text of a stream is the text of all tokens so far.
        """
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        refuse_unsupported(arrays)
        prepared = self._preprocessor.process(_renamed(arrays, _TO_PREPROCESSING))
        others = {
            _TO_CORE.get(name, name): array
            for name, array in arrays.items()
            if name not in _TO_PREPROCESSING and name not in _ONLY_HERE
        }
        inputs = {**others, **_renamed(prepared, _FROM_PREPROCESSING)}
        wanted = set(request.requested_output_names())
        # With the id of the client's request, the client can stop this request.
        inner = request.request_id() or uuid.uuid4().hex
        outputs = {"output_ids", "sequence_length", *wanted} - {"text_output"}
        so_far: list[int] = []
        final, is_stopped = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL, False
        for response in self._ask(inner, inputs, outputs):
            if response.has_error():
                _fail(sender, response.error())
                return
            received = {tensor.name(): tensor for tensor in response.output_tensors()}
            if not received:
                continue
            length = received.pop("sequence_length").as_numpy().item()
            new = received.pop("output_ids").as_numpy()[0, 0, :length].tolist()
            so_far = [*so_far, *new] if self._accumulates else new
            text = self._preprocessor.tokenizer.decode(so_far, skip_special_tokens=self._skips)
            tensors = [tensor for name, tensor in received.items() if name in wanted]
            if "text_output" in wanted:
                tensors.append(pb_utils.Tensor("text_output", np.array([text.encode()], dtype=np.object_)))
            sender.send(pb_utils.InferenceResponse(tensors), flags=0 if self._decoupled else final)
            if self._decoupled and not is_stopped and sender.is_cancelled():
                is_stopped = True
                list(self._ask(inner, _STOP, ()))
        if self._decoupled:
            sender.send(flags=final)

    def _ask(self, inner: str, inputs: Mapping[str, Any], outputs: Iterable[str]) -> Iterable[Any]:
        """Return the responses of ``tensorrt_llm`` to a request."""
        request = pb_utils.InferenceRequest(
            model_name=self._model,
            request_id=inner,
            requested_output_names=sorted(outputs),
            # A scalar is [1] for clients and has no dimension for a model.
            inputs=[
                pb_utils.Tensor(name, array[:, None] if array.ndim == 1 else array)
                for name, array in inputs.items()
                if array.size
            ],
        )
        return request.exec(decoupled=True) if self._decoupled else [request.exec()]


_STOP = {
    "input_lengths": np.zeros(1, dtype=np.int32),
    "request_output_len": np.zeros(1, dtype=np.int32),
    "stop": np.ones(1, dtype=np.bool_),
}
"""Inputs of a request that stops the request with the same id."""


def _fail(sender: Any, error: Any) -> None:
    flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    sender.send(pb_utils.InferenceResponse(error=error), flags=flags)


def _renamed(arrays: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {new: arrays[old] for old, new in names.items() if old in arrays}
