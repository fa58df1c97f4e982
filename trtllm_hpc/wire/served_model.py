"""A model of a Triton server by its configuration, and the names of TensorRT-LLM's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEXT_OUTPUT = "text_output"
IDS_OUTPUT = "output_ids"
LENGTH_OUTPUT = "sequence_length"
"""Output with the number of tokens of each sequence, for models that declare it."""
LOG_PROBS_OUTPUT = "output_log_probs"
LOGITS_OUTPUTS = ("context_logits", "generation_logits")
"""Outputs with the logits of prompt and answer, which are placeholders unless requested."""
LLM_API_LENGTH = "sampling_param_max_tokens"
"""Input ``max_tokens`` of the LLM API's model (TensorRT-LLM's ``all_models/llmapi``, since 0.19)."""
STREAM_INPUTS = ("stream", "streaming")
"""Inputs that make a decoupled model stream: of text models, and of ``tensorrt_llm``."""
ALWAYS_SENT = ("bad_words", "stop_words")
"""Inputs that the ensemble of old releases requires; an empty text has no effect."""
TASK_ID_INPUT, WEIGHTS_INPUT, CONFIG_INPUT = "lora_task_id", "lora_weights", "lora_config"
"""Inputs for LoRA adapters; the task ID is a UINT64."""


CORE_MODEL = "tensorrt_llm"
TEXT_MODELS = ("ensemble", "tensorrt_llm_bls", CORE_MODEL)
"""Usual names of text models, most usual first; the last accepts text only as the LLM API's model."""


@dataclass(frozen=True)
class ServedModel:
    """The part of a model's configuration that a client needs."""

    name: str
    inputs: Mapping[str, str]
    """Types of inputs by name, e.g. ``TYPE_INT32``."""
    batched: bool = True
    """Whether the inputs have a batch dimension."""
    decoupled: bool = False
    """Whether a request can have any number of responses, which needs streaming calls."""
    ensemble: bool = False
    """Whether the model consists of other models, to which Triton does not pass cancellations on."""
    accumulates: bool = False
    """Whether each response of a stream repeats the text so far (``accumulate_tokens`` of BLS)."""

    @property
    def takes_text(self) -> bool:
        """Whether prompts are texts instead of token IDs."""
        return "text_input" in self.inputs

    @property
    def is_llm_api(self) -> bool:
        """Whether the model is the LLM API's, whose inputs have other names."""
        return LLM_API_LENGTH in self.inputs

    def prompt_values(self, prompt: str | Sequence[int]) -> dict[str, Any]:
        """Return the inputs of a prompt, and those that every request needs.

        Raises ValueError for a text to a model that accepts token IDs, or vice versa.
        """
        if isinstance(prompt, str) and self.takes_text:
            always = () if self.is_llm_api else ALWAYS_SENT
            return {"text_input": prompt, **dict.fromkeys(always, "")}
        if not isinstance(prompt, str) and not self.takes_text:
            return {"input_ids": list(prompt), "input_lengths": len(prompt)}
        accepts = "texts, not token IDs" if self.takes_text else "token IDs, not texts"
        raise ValueError(f"model {self.name!r} accepts {accepts}")


ENSEMBLE = ServedModel(
    "ensemble",
    {
        **dict.fromkeys(("text_input", "bad_words", "stop_words"), "TYPE_STRING"),
        **dict.fromkeys(("max_tokens", "min_length"), "TYPE_INT32"),
        "stream": "TYPE_BOOL",
        TASK_ID_INPUT: "TYPE_UINT64",
    },
)
"""TensorRT-LLM's text model, for any release."""


def parse_model_config(name: str, config: Mapping[str, Any]) -> ServedModel:
    """Return the part of a model's JSON configuration that a client needs."""
    accumulates = config.get("parameters", {}).get("accumulate_tokens", {}).get("string_value", "")
    return ServedModel(
        name=name,
        inputs={str(entry.get("name")): str(entry.get("data_type", "")) for entry in config.get("input", ())},
        batched=bool(config.get("max_batch_size", 0)),
        decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        ensemble=config.get("platform") == "ensemble",
        accumulates=accumulates.lower() == "true",
    )


def ready_models(index: Any) -> list[str]:
    """Return the names of the ready models in Triton's JSON repository index."""
    entries = [entry for entry in index if isinstance(entry, dict)] if isinstance(index, list) else []
    return [str(entry.get("name")) for entry in entries if entry.get("state", "READY") == "READY"]
