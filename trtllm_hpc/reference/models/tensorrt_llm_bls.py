"""Triton model ``tensorrt_llm_bls``: text in, text out, by calling the other models. Runs in Triton's stub.

Each instance is a process that answers one request at a time, as upstream's
does; ``bls_instance_count`` is the number of requests answered at once.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.requests import check_parameters
from trtllm_hpc.reference.text import switch
from trtllm_hpc.reference.unsupported import refuse_unsupported_text

TO_PREPROCESSING = {
    "text_input": "QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
    "prompt_table_extra_id": "PROMPT_TABLE_EXTRA_ID",
}
FROM_PREPROCESSING = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}
TO_GENERATION = {
    "exclude_input_in_output": "exclude_input_in_output",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "temperature": "temperature",
    "length_penalty": "len_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_length": "min_length",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "random_seed": "random_seed",
    "return_log_probs": "return_log_probs",
    "return_context_logits": "return_context_logits",
    "return_generation_logits": "return_generation_logits",
    "return_kv_cache_reuse_stats": "return_kv_cache_reuse_stats",
    "prompt_embedding_table": "prompt_embedding_table",
    "prompt_vocab_size": "prompt_vocab_size",
    "num_return_sequences": "num_return_sequences",
    "beam_width": "beam_width",
    "stream": "streaming",
    "lora_task_id": "lora_task_id",
    "lora_weights": "lora_weights",
    "lora_config": "lora_config",
}
PASSED_ON = (
    "cum_log_probs",
    "output_log_probs",
    "context_logits",
    "generation_logits",
    "batch_index",
    "sequence_index",
    "kv_cache_alloc_new_blocks",
    "kv_cache_reused_blocks",
    "kv_cache_alloc_total_blocks",
)
"""Outputs of the generation that are passed on unchanged if they are wanted."""

STOP = {
    "input_ids": np.zeros((1, 1), dtype=np.int32),
    "input_lengths": np.zeros((1, 1), dtype=np.int32),
    "request_output_len": np.zeros((1, 1), dtype=np.int32),
    "stop": np.ones((1, 1), dtype=np.bool_),
}
"""Inputs of the request that stops the one of the same id."""

CANCELLATION_CHECK_S = 0.1
"""Seconds between two checks whether the client has disconnected."""


class TritonPythonModel:
    """Sends one response for each sequence, or for each token if the request is streaming."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self._accumulates = switch(parameters, "accumulate_tokens", default=False)
        self._generation = parameters.get("tensorrt_llm_model_name") or "tensorrt_llm"

    def execute(self, triton_requests: list[Any]) -> None:
        """Answer the requests one after the other."""
        for request in triton_requests:
            sender = request.get_response_sender()
            try:
                check_parameters(request)
                self._answer(request, sender)
            except RequestFailed as error:
                code = pb_utils.TritonError.INVALID_ARG
                _finish(sender, pb_utils.InferenceResponse(error=pb_utils.TritonError(error.message, code)))
            except _Refused as refused:
                _finish(sender, pb_utils.InferenceResponse(error=refused.error))
            except pb_utils.TritonModelException as error:
                _finish(sender, pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))

    def _answer(self, request: Any, sender: Any) -> None:
        arrays = {
            name: _as_sent(tensor.as_numpy())
            for name in self._inputs
            if (tensor := pb_utils.get_input_tensor_by_name(request, name)) is not None
        }
        refuse_unsupported_text(arrays)
        wanted = {name: name for name in PASSED_ON if name in request.requested_output_names()}
        prepared = _call("preprocessing", _renamed(arrays, TO_PREPROCESSING), list(FROM_PREPROCESSING))
        inputs = {
            **{FROM_PREPROCESSING[name]: array for name, array in _arrays(prepared).items()},
            **_renamed(arrays, TO_GENERATION),
        }
        is_streaming = "stream" in arrays and bool(arrays["stream"].any())
        texts = _Texts(accumulates=self._accumulates and is_streaming)
        outputs = ["output_ids", "sequence_length", "batch_index", "sequence_index", *wanted]
        asked = (self._generation, inputs, sorted(set(outputs)), sender, self._decoupled)
        with _generating(*asked) as answers:
            for answer in answers:
                found = _arrays(answer)
                tensors = {"text_output": texts.after(found), **_renamed(found, wanted)}
                response = pb_utils.InferenceResponse(_tensors(tensors))
                if self._decoupled:
                    sender.send(response)
        # Only now: a sender must not be asked for cancellation after its last response.
        if self._decoupled:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        else:
            _finish(sender, response)


class _Refused(Exception):
    """Another model answered with an error."""

    def __init__(self, error: Any) -> None:
        super().__init__(error.message())
        self.error = error


class _Texts:
    """The text of each response; with accumulation, that of all tokens so far.

    A token that is decoded alone may be an incomplete letter, and loses the
    space before it. Upstream does the same without accumulation.
    """

    def __init__(self, *, accumulates: bool) -> None:
        self._accumulates = accumulates
        self._tokens: dict[tuple[int, int], Any] = {}

    def after(self, answer: dict[str, Any]) -> Any:
        tokens, lengths = answer["output_ids"], answer["sequence_length"]
        if self._accumulates:
            sequence = _index(answer, "batch_index"), _index(answer, "sequence_index")
            before = self._tokens.get(sequence)
            tokens = tokens if before is None else np.concatenate([before, tokens], axis=2)
            self._tokens[sequence] = tokens
            lengths = np.full(lengths.shape, tokens.shape[2], dtype=np.int32)
        called = _call("postprocessing", {"TOKENS_BATCH": tokens, "SEQUENCE_LENGTH": lengths}, ["OUTPUT"])
        return _arrays(called)["OUTPUT"]


@contextmanager
def _generating(
    model: str, inputs: dict[str, Any], outputs: list[str], sender: Any, decoupled: bool
) -> Iterator[Iterator[Any]]:
    """The answers of the generating model, which is stopped if the client disconnects.

    It is stopped by a stop request with the same id, since a call to another
    model cannot be cancelled.
    """
    request_id = uuid.uuid4().hex
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(CANCELLATION_CHECK_S):
            if sender.is_cancelled():
                for _ in _responses(_request(model, STOP, ["output_ids"], request_id), decoupled):
                    pass
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        responses = _responses(_request(model, inputs, outputs, request_id), decoupled)
        # The last response of a decoupled model may be empty and only mark the end.
        yield (response for response in responses if _checked(response).output_tensors())
    finally:
        ended.set()
        watcher.join()


def _responses(call: Any, decoupled: bool) -> Iterator[Any]:
    return iter(call.exec(decoupled=True) if decoupled else [call.exec()])


def _index(answer: dict[str, Any], name: str) -> int:
    """An index of an answer; 0 if it is the only one and has none."""
    return int(answer[name].flat[0]) if name in answer else 0


def _as_sent(array: Any) -> Any:
    """An input as the client sent it: Triton hands some over without their dimension, but takes none so."""
    return array.reshape(-1, 1) if array.ndim == 1 else array


def _renamed(arrays: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {new: arrays[old] for old, new in names.items() if old in arrays}


def _tensors(arrays: dict[str, Any]) -> list[Any]:
    return [pb_utils.Tensor(name, array) for name, array in arrays.items()]


def _arrays(response: Any) -> dict[str, Any]:
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def _request(model: str, inputs: dict[str, Any], outputs: list[str], request_id: str = "") -> Any:
    return pb_utils.InferenceRequest(
        model_name=model, inputs=_tensors(inputs), requested_output_names=outputs, request_id=request_id
    )


def _call(model: str, inputs: dict[str, Any], outputs: list[str]) -> Any:
    return _checked(_request(model, inputs, outputs).exec())


def _checked(response: Any) -> Any:
    if response.has_error():
        raise _Refused(response.error())
    return response


def _finish(sender: Any, response: Any) -> None:
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
