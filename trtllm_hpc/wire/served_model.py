"""The configuration of a model of a Triton server, with the names of upstream's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEXT_OUTPUT = "text_output"
IDS_OUTPUT = "output_ids"
LENGTH_OUTPUT = "sequence_length"
"""Number of output tokens of each sequence. Not every model declares this output."""
LOG_PROBS_OUTPUT = "output_log_probs"
LOGITS_OUTPUTS = ("context_logits", "generation_logits")
"""Logits of the prompt and of the answer. Models send placeholders unless a request asks for the logits."""
LLM_API_LENGTH = "sampling_param_max_tokens"
"""Input for ``max_tokens`` of the LLM API's model (upstream's ``all_models/llmapi``, since 0.19)."""
STREAM_INPUTS = ("stream", "streaming")
"""Input that makes a decoupled model stream: the name in upstream's text models and in ``tensorrt_llm``."""
ALWAYS_SENT = ("bad_words", "stop_words")
"""Inputs that old releases of upstream's ensemble require. An empty text switches them off."""
TASK_ID_INPUT, WEIGHTS_INPUT, CONFIG_INPUT = "lora_task_id", "lora_weights", "lora_config"
"""Inputs for LoRA adapters; the first is a UINT64."""


CORE_MODEL = "tensorrt_llm"
TEXT_MODELS = ("ensemble", "tensorrt_llm_bls", CORE_MODEL)
"""Names of models that take text, the usual name first. The core model takes text with the LLM API only."""


@dataclass(frozen=True)
class ServedModel:
    """The part of a model's configuration that a client needs."""

    name: str
    inputs: Mapping[str, str]
    """Type of each input by its name, e.g. ``TYPE_INT32``."""
    batched: bool = True
    """Whether the inputs have a batch dimension."""
    decoupled: bool = False
    """Whether a request may have any number of responses. Such a model takes streaming calls only."""
    ensemble: bool = False
    """Whether the model consists of other models. Triton does not forward a cancellation to these models."""
    accumulates: bool = False
    """Whether each response of a stream repeats the text so far (``accumulate_tokens`` of BLS)."""

    @property
    def takes_text(self) -> bool:
        """Whether prompts are texts; otherwise they are token IDs."""
        return "text_input" in self.inputs

    @property
    def is_llm_api(self) -> bool:
        """Whether the model is the LLM API's, whose inputs have other names."""
        return LLM_API_LENGTH in self.inputs

    def prompt_values(self, prompt: str | Sequence[int]) -> dict[str, Any]:
        """Return the inputs that contain a prompt, and the inputs that every request needs.

        Raises ValueError if the prompt is a text and the model takes token IDs, or the reverse.
        """
        if isinstance(prompt, str) and self.takes_text:
            always = () if self.is_llm_api else ALWAYS_SENT
            return {"text_input": prompt, **dict.fromkeys(always, "")}
        if not isinstance(prompt, str) and not self.takes_text:
            return {"input_ids": list(prompt), "input_lengths": len(prompt)}
        accepted = "texts, not token IDs" if self.takes_text else "token IDs, not texts"
        raise ValueError(f"model {self.name!r} accepts {accepted}")


ENSEMBLE = ServedModel(
    "ensemble",
    {
        **dict.fromkeys(("text_input", "bad_words", "stop_words"), "TYPE_STRING"),
        **dict.fromkeys(("max_tokens", "min_length"), "TYPE_INT32"),
        "stream": "TYPE_BOOL",
        TASK_ID_INPUT: "TYPE_UINT64",
    },
)
"""Upstream's text model, of any release."""


def parse_model_config(name: str, config: Mapping[str, Any]) -> ServedModel:
    """Return the part of a model's configuration (parsed JSON) that a client needs."""
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
    """Return the names of the ready models in Triton's repository index (parsed JSON)."""
    entries = [entry for entry in index if isinstance(entry, dict)] if isinstance(index, list) else []
    return [str(entry.get("name")) for entry in entries if entry.get("state", "READY") == "READY"]
