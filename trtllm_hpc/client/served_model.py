"""A served model: its inputs, as its configuration lists them, and the tensors of a request to it.

Tensors have upstream's names (``ensemble``, ``tensorrt_llm_bls``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from trtllm_hpc.client.http import call_json
from trtllm_hpc.runtime.records import Endpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXT_OUTPUT = "text_output"
LENGTH_OUTPUT = "sequence_length"
"""Output tokens of each sequence, for models that declare it."""
LLM_API_LENGTH = "sampling_param_max_tokens"
"""``max_tokens`` of the LLM API's model (upstream's ``all_models/llmapi``, 0.19 on)."""
STREAM_INPUTS = ("stream", "streaming")
"""Names of the input that makes a decoupled model stream: upstream's text models', and ``tensorrt_llm``'s."""
ALWAYS_SENT = ("bad_words", "stop_words")
"""Inputs that old releases of upstream's ensemble do not declare optional; an empty text asks for nothing."""

CORE_MODEL = "tensorrt_llm"
TEXT_MODELS = ("ensemble", "tensorrt_llm_bls", CORE_MODEL)
"""By their names, the usual one first; the last takes text if it is the LLM API's."""


@dataclass(frozen=True)
class TextModel:
    """The form of a text model's inputs; by default that of upstream's ``ensemble``, of any release."""

    takes_sampling_params: bool = False
    """Whether it is the LLM API's model."""
    batched: bool = True
    """Whether its inputs have a batch dimension."""


@dataclass(frozen=True)
class ServedModel:
    """The part of a model's configuration that a client needs."""

    name: str
    inputs: Mapping[str, str]
    """Type of each input by its name, e.g. ``TYPE_INT32``."""
    batched: bool
    """Whether these have a batch dimension."""
    decoupled: bool
    """Whether a request may have any number of responses: it then takes streaming calls only."""
    ensemble: bool = False
    """Whether it consists of other models. Triton does not pass on that a request to it was cancelled."""
    accumulates: bool = False
    """Whether each response of a stream repeats the text so far (``accumulate_tokens`` of BLS)."""

    @property
    def takes_text(self) -> bool:
        """Whether prompts are texts; otherwise they are token ids."""
        return "text_input" in self.inputs

    @property
    def can_stop(self) -> bool:
        """Whether it ends the request of an id when it is sent ``stop``, itself or by its core model."""
        return self.ensemble or "stop" in self.inputs

    @property
    def text(self) -> TextModel:
        """The form of its inputs, if it is a text model."""
        return TextModel(LLM_API_LENGTH in self.inputs, self.batched)


def describe(endpoint: Endpoint, model: str, timeout_s: float) -> ServedModel:
    """Fetch a model's configuration from the server.

    Raises RequestFailed with the server's error message, for example that it has no such model.
    """
    return served_model(model, call_json(endpoint, f"v2/models/{quote(model, safe='')}/config", timeout_s))


def served_model(name: str, config: Mapping[str, Any]) -> ServedModel:
    """Return what a client needs of a model's configuration, as JSON."""
    accumulates = config.get("parameters", {}).get("accumulate_tokens", {}).get("string_value", "")
    return ServedModel(
        name=name,
        inputs={str(it.get("name")): str(it.get("data_type", "")) for it in config.get("input", ())},
        batched=bool(config.get("max_batch_size", 0)),
        decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        ensemble=config.get("platform") == "ensemble",
        accumulates=accumulates.lower() == "true",
    )


def usual_model(endpoint: Endpoint) -> str:
    """Return the served model that is asked unless another one is named."""
    return next((name for name in TEXT_MODELS if name in endpoint.models), TEXT_MODELS[0])


def text_inputs(prompt: str, max_tokens: int, model: TextModel) -> dict[str, NDArray[Any]]:
    """Return the inputs of one request, batch of one."""
    shape = (1, 1) if model.batched else (1,)
    text = np.array([prompt.encode("utf-8", errors="replace")], dtype=np.object_).reshape(shape)
    length = np.full(shape, max_tokens, dtype=np.int32)
    if model.takes_sampling_params:
        return {"text_input": text, LLM_API_LENGTH: length}
    empty = np.array([b""], dtype=np.object_).reshape(shape)
    return {"text_input": text, "max_tokens": length, **dict.fromkeys(ALWAYS_SENT, empty)}
