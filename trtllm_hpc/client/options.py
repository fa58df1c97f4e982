"""The options of a request, and the inputs that carry them in each of upstream's models.

The names are those of ``inflight_batcher_llm_client.py`` and
``end_to_end_grpc_client.py`` (tensorrtllm_backend v0.16), in underscores; the
inputs are those of ``all_models/inflight_batcher_llm`` there and of
``triton_backend/all_models/llmapi`` (TensorRT-LLM 1.1).
Which of them a server knows follows from the inputs of the served model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["count", "number", "text", "texts", "numbers", "flag"]
"""``count`` and ``number`` are a whole and any number, ``texts`` and ``numbers`` several of their kind."""


@dataclass(frozen=True)
class Option:
    """One option of a request."""

    name: str
    kind: Kind
    text: str
    """Input of ``ensemble`` and ``tensorrt_llm_bls``."""
    core: str
    """Input of ``tensorrt_llm``; empty if the option means nothing there."""
    help: str
    llm_api: str = ""
    """Input of the LLM API's model, if it is not ``sampling_param_`` and the name."""

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs that may carry it; a model has one of them at most."""
        return tuple(filter(None, (self.text, self.core, self.llm_api or f"sampling_param_{self.name}")))


OPTIONS: tuple[Option, ...] = (
    Option("max_tokens", "count", "max_tokens", "request_output_len", "Most tokens of the answer."),
    Option("min_tokens", "count", "min_length", "min_length", "Fewest tokens of the answer."),
    Option(
        "temperature", "number", "temperature", "temperature", "Randomness; alone it leaves decoding greedy."
    ),
    Option(
        "top_k",
        "count",
        "top_k",
        "runtime_top_k",
        "Sample among the K likeliest tokens; 1 is greedy, 0 is all.",
    ),
    Option(
        "top_p", "number", "top_p", "runtime_top_p", "Sample among the likeliest tokens up to this share."
    ),
    Option(
        "min_p", "number", "min_p", "min_p", "Leave out tokens less likely than this share of the likeliest."
    ),
    Option("seed", "count", "random_seed", "random_seed", "Seed of the sampling."),
    Option(
        "repetition_penalty",
        "number",
        "repetition_penalty",
        "repetition_penalty",
        "Above 1: fewer repetitions.",
    ),
    Option(
        "presence_penalty",
        "number",
        "presence_penalty",
        "presence_penalty",
        "Taken off tokens that were there.",
    ),
    Option(
        "frequency_penalty",
        "number",
        "frequency_penalty",
        "frequency_penalty",
        "The same, each time they were there.",
    ),
    Option(
        "length_penalty",
        "number",
        "length_penalty",
        "len_penalty",
        "Above 0: a beam search prefers long answers.",
    ),
    Option("beam_width", "count", "beam_width", "beam_width", "Beams of a beam search; 1 is none."),
    Option(
        "return_sequences", "count", "num_return_sequences", "num_return_sequences", "Answers to each prompt."
    ),
    Option(
        "stop_words",
        "texts",
        "stop_words",
        "",
        "The answer ends after this text.  [repeatable]",
        "sampling_param_stop",
    ),
    Option("bad_words", "texts", "bad_words", "", "This text is never generated.  [repeatable]"),
    Option(
        "embedding_bias_words",
        "texts",
        "embedding_bias_words",
        "",
        "Make this text more or less likely.  [repeatable]",
    ),
    Option(
        "embedding_bias_weights",
        "numbers",
        "embedding_bias_weights",
        "",
        "By how much, for each of them.  [repeatable]",
    ),
    Option(
        "end_id", "count", "end_id", "end_id", "The token that ends an answer; the tokenizer's by default."
    ),
    Option("pad_id", "count", "pad_id", "pad_id", "The token that fills up shorter answers."),
    Option(
        "exclude_input",
        "flag",
        "exclude_input_in_output",
        "exclude_input_in_output",
        "Leave the prompt out of the answer.",
        "sampling_param_exclude_input_from_output",
    ),
    Option(
        "log_probs",
        "flag",
        "return_log_probs",
        "return_log_probs",
        "Ask for the logarithms of probabilities.",
    ),
    Option(
        "lora_task_id", "count", "lora_task_id", "lora_task_id", "LoRA adapter that the server already has."
    ),
)
"""Every option, in the order of the help text."""

BY_NAME: Mapping[str, Option] = MappingProxyType({option.name: option for option in OPTIONS})

Values = Mapping[str, Any]
"""Given options by name: ``int``, ``float``, ``str``, ``bool``, or a list of these, as the kind says."""
