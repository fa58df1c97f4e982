"""Triton model ``tensorrt_llm_bls``: text in, text out. Runs in Triton's Python stub.

Upstream's model calls ``preprocessing``, ``tensorrt_llm`` and ``postprocessing``; each instance waits for one
request at a time. This one does the work of the first and the last itself and asks the engine's process
directly. So an instance answers any number of requests at once, and ``bls_instance_count`` is the number of
processes that share the work.
"""

from __future__ import annotations

import faulthandler
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_hpc.reference import engine_process
from trtllm_hpc.reference.delivery import Delivery, TextAnswer, submit
from trtllm_hpc.reference.engine_config import EngineInfo
from trtllm_hpc.reference.generation import EngineLost
from trtllm_hpc.reference.inputs import TEXT_NAMES, refuse_unsupported_text
from trtllm_hpc.reference.requests import Part, parse
from trtllm_hpc.reference.text import Preprocessor, switch

TO_PREPROCESSING = {
    "text_input": "QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
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
CANCELLATION_CHECK_S = 0.1
"""Seconds between two checks whether a client has disconnected."""


class TritonPythonModel:
    """Sends one response for each sequence, or as the tokens come if the request is streaming."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters and the tokenizer."""
        # A crash of the stub then leaves a traceback in the rank's log.
        faulthandler.enable()
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self._preprocessor = Preprocessor(parameters)
        self._make_answer = partial(
            TextAnswer,
            tokenizer=self._preprocessor.tokenizer,
            skip_special_tokens=switch(parameters, "skip_special_tokens", default=True),
            accumulates=switch(parameters, "accumulate_tokens", default=False),
        )
        self._engine: tuple[EngineInfo, Delivery] | None = None

    def execute(self, triton_requests: list[Any]) -> None:
        """Submit the requests; ``Delivery`` sends the answers."""
        submit(triton_requests, pb_utils, self._read)

    def finalize(self) -> None:
        """End the threads; Triton has waited for the requests."""
        if self._engine is not None:
            self._engine[1].close()

    def _connect(self) -> tuple[EngineInfo, Delivery]:
        """Connect to the engine, at the first request: only then it is certainly loaded."""
        engine = engine_process.connect()
        delivery = Delivery(
            engine, pb_utils, cancellation_check_s=CANCELLATION_CHECK_S, make_answer=self._make_answer
        )
        self._engine = engine.info, delivery
        engine.serve(delivery.hear, self._forget)
        return engine.info, delivery

    def _forget(self, sentence: str) -> None:
        """The engine is gone: its open requests fail, and the next one connects again."""
        if self._engine is not None:
            _, delivery = self._engine
            self._engine = None
            delivery.close()
            delivery.fail_all(EngineLost(sentence))

    def _read(self, request: Any) -> tuple[Delivery, Sequence[Part]]:
        # Copied: the arrays lie in memory that Triton uses again.
        arrays = {tensor.name(): tensor.as_numpy().copy() for tensor in request.inputs()}
        refuse_unsupported_text(arrays)
        prepared = self._preprocessor.process(_renamed(arrays, TO_PREPROCESSING))
        others = {TEXT_NAMES.get(name, name): array for name, array in arrays.items()}
        info, delivery = self._engine or self._connect()
        inputs = {**others, **_renamed(prepared, FROM_PREPROCESSING)}
        return delivery, parse(inputs, info, decoupled=self._decoupled)


def _renamed(arrays: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {new: arrays[old] for old, new in names.items() if old in arrays}
