"""Triton model ``tensorrt_llm_bls``: text in, text out, by the engine's process. In Triton's Python stub."""

from __future__ import annotations

import faulthandler
import json
from collections.abc import Mapping, Sequence
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
from trtllm_hpc.wire.served_model import FROM_PREPROCESSING, TO_PREPROCESSING

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


def _renamed(arrays: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {new: arrays[old] for old, new in names.items() if old in arrays}
