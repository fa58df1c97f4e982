"""A model of a Triton server as its configuration describes it, with the names of upstream's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEXT_OUTPUT = "text_output"
IDS_OUTPUT = "output_ids"
LENGTH_OUTPUT = "sequence_length"
"""Output tokens of each sequence, for models that declare it."""
LOG_PROBS_OUTPUT = "output_log_probs"
LOGITS_OUTPUTS = ("context_logits", "generation_logits")
"""Logits of the prompt and of the answer. Models send placeholders unless a request asks for the logits."""
LLM_API_LENGTH = "sampling_param_max_tokens"
"""``max_tokens`` of the LLM API's model (upstream's ``all_models/llmapi``, 0.19 on)."""
STREAM_INPUTS = ("stream", "streaming")
"""Names of the input that makes a decoupled model stream: upstream's text models', and ``tensorrt_llm``'s."""
ALWAYS_SENT = ("bad_words", "stop_words")
"""Inputs that old releases of upstream's ensemble do not declare optional; an empty text asks for nothing."""
TASK_ID_INPUT, WEIGHTS_INPUT, CONFIG_INPUT = "lora_task_id", "lora_weights", "lora_config"
"""Inputs for LoRA adapters; the first is a UINT64."""


CORE_MODEL = "tensorrt_llm"
TEXT_MODELS = ("ensemble", "tensorrt_llm_bls", CORE_MODEL)
"""By their names, the usual one first; the last takes text if it is the LLM API's."""


@dataclass(frozen=True)
class ServedModel:
    """The part of a model's configuration that a client needs."""

    name: str
    inputs: Mapping[str, str]
    """Type of each input by its name, e.g. ``TYPE_INT32``."""
    batched: bool = True
    """Whether these have a batch dimension."""
    decoupled: bool = False
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
    def is_llm_api(self) -> bool:
        """Whether it is the LLM API's model, whose inputs have names of their own."""
        return LLM_API_LENGTH in self.inputs

    def prompt_values(self, prompt: str | Sequence[int]) -> dict[str, Any]:
        """Return the inputs that hold a prompt, and those that a request always has.

        Raises ValueError for a text to a model that takes token ids, or the other way round.
        """
        if isinstance(prompt, str) and self.takes_text:
            always = () if self.is_llm_api else ALWAYS_SENT
            return {"text_input": prompt, **dict.fromkeys(always, "")}
        if not isinstance(prompt, str) and not self.takes_text:
            return {"input_ids": list(prompt), "input_lengths": len(prompt)}
        takes = "texts, not token ids" if self.takes_text else "token ids, not texts"
        raise ValueError(f"model {self.name!r} takes {takes}")


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
    """Return what a client needs of a model's configuration, as JSON."""
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
    """Return the names of the ready models in Triton's index of its repository, as JSON."""
    entries = [entry for entry in index if isinstance(entry, dict)] if isinstance(index, list) else []
    return [str(entry.get("name")) for entry in entries if entry.get("state", "READY") == "READY"]
