"""The options of a request, and what carries them in each kind of served model.

The names are those of ``inflight_batcher_llm_client.py`` and
``end_to_end_grpc_client.py`` (tensorrtllm_backend v0.16), in underscores. The
inputs are those of ``all_models/inflight_batcher_llm`` (v0.16; v0.19 for guided
decoding) and of ``triton_backend/all_models/llmapi`` (TensorRT-LLM 1.2). The
keys of OpenAI's completions are OpenAI's, and for the rest those of
``trtllm-serve`` (``tensorrt_llm/serve/openai_protocol.py``), which vLLM shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["count", "number", "text", "texts", "numbers", "flag", "ids", "array"]
"""``count`` and ``number`` are a whole and any number, ``texts`` and ``numbers`` several of their kind,
``ids`` token ids, ``array`` a NumPy array."""


@dataclass(frozen=True)
class Option:
    """One option of a request. An empty name of an input or key says that there is none."""

    name: str
    kind: Kind
    help: str
    text: str
    """Input of ``ensemble`` and ``tensorrt_llm_bls``."""
    core: str
    """Input of ``tensorrt_llm``; if ``preprocessing`` makes it of texts, the one that it makes."""
    llm_api: str = ""
    """Input of the LLM API's model."""
    openai: str = ""
    """Key of OpenAI's completions."""

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of Triton's models that may carry it; a model has one of them at most."""
        return tuple(filter(None, (self.text, self.core, self.llm_api)))


def _option(
    name: str,
    kind: Kind,
    text: str,
    help: str,
    *,
    core: str | None = None,
    sampling_param: str = "",
    openai: str = "",
) -> Option:
    """An option whose input has the same name in ``tensorrt_llm`` unless ``core`` says otherwise."""
    llm_api = f"sampling_param_{sampling_param}" if sampling_param else ""
    return Option(name, kind, help, text, text if core is None else core, llm_api, openai)


OPTIONS: tuple[Option, ...] = (
    _option(
        "max_tokens",
        "count",
        "max_tokens",
        "Most tokens of the answer.",
        core="request_output_len",
        sampling_param="max_tokens",
        openai="max_tokens",
    ),
    _option("min_tokens", "count", "min_length", "Fewest tokens of the answer.", openai="min_tokens"),
    _option(
        "temperature",
        "number",
        "temperature",
        "Randomness; alone it leaves Triton's models greedy.",
        sampling_param="temperature",
        openai="temperature",
    ),
    _option(
        "top_k",
        "count",
        "top_k",
        "Sample among the K likeliest tokens; 1 is greedy, 0 is all.",
        core="runtime_top_k",
        sampling_param="top_k",
        openai="top_k",
    ),
    _option(
        "top_p",
        "number",
        "top_p",
        "Sample among the likeliest tokens up to this share.",
        core="runtime_top_p",
        sampling_param="top_p",
        openai="top_p",
    ),
    _option(
        "min_p",
        "number",
        "min_p",
        "Leave out tokens less likely than this share of the likeliest.",
        sampling_param="min_p",
        openai="min_p",
    ),
    _option("seed", "count", "random_seed", "Seed of the sampling.", sampling_param="seed", openai="seed"),
    _option(
        "repetition_penalty",
        "number",
        "repetition_penalty",
        "Above 1: fewer repetitions.",
        openai="repetition_penalty",
    ),
    _option(
        "presence_penalty",
        "number",
        "presence_penalty",
        "Taken off tokens that were there.",
        sampling_param="presence_penalty",
        openai="presence_penalty",
    ),
    _option(
        "frequency_penalty",
        "number",
        "frequency_penalty",
        "The same, each time they were there.",
        sampling_param="frequency_penalty",
        openai="frequency_penalty",
    ),
    _option(
        "length_penalty",
        "number",
        "length_penalty",
        "Above 0: a beam search prefers long answers.",
        core="len_penalty",
        openai="length_penalty",
    ),
    _option("beam_width", "count", "beam_width", "Beams of a beam search; 1 is none."),
    _option("return_sequences", "count", "num_return_sequences", "Answers to each prompt.", openai="n"),
    _option(
        "stop_words",
        "texts",
        "stop_words",
        "The answer ends after this text.",
        core="stop_words_list",
        sampling_param="stop",
        openai="stop",
    ),
    _option("bad_words", "texts", "bad_words", "This text is never generated.", core="bad_words_list"),
    _option(
        "embedding_bias_words",
        "texts",
        "embedding_bias_words",
        "Make this text more or less likely.",
        core="embedding_bias",
    ),
    _option(
        "embedding_bias_weights",
        "numbers",
        "embedding_bias_weights",
        "By how much, for each of them.",
        core="embedding_bias",
    ),
    _option("end_id", "count", "end_id", "The token that ends an answer; the tokenizer's by default."),
    _option("pad_id", "count", "pad_id", "The token that fills up shorter answers."),
    _option(
        "exclude_input",
        "flag",
        "exclude_input_in_output",
        "Leave the prompt out of the answer.",
        sampling_param="exclude_input_from_output",
    ),
    _option(
        "log_probs",
        "flag",
        "return_log_probs",
        "Ask for the logarithm of each token's probability.",
        openai="logprobs",
    ),
    _option(
        "lora_task_id", "count", "lora_task_id", "LoRA adapter that the server has, or that --lora-dir sends."
    ),
    _option(
        "draft_tokens",
        "ids",
        "",
        "Token ids that the answer probably begins with, e.g. 5,7,9; the server verifies them.",
        core="draft_input_ids",
    ),
    _option(
        "num_draft_tokens",
        "count",
        "num_draft_tokens",
        "Tokens that the draft model proposes at once.",
        core="",
    ),
    _option(
        "prompt_embedding_table",
        "array",
        "prompt_embedding_table",
        "File (.npy) with the embeddings of virtual tokens, [tokens, hidden size]."
        " Ids from the vocabulary's size on stand for them.",
    ),
    _option(
        "prompt_table_extra_id",
        "count",
        "prompt_table_extra_id",
        "Tells prompts with different tables apart, where blocks of the KV cache are reused.",
        core="prompt_table_extra_ids",
    ),
    _option(
        "guided_decoding_guide_type",
        "text",
        "guided_decoding_guide_type",
        "What the answer must follow: json, json_schema, regex, ebnf_grammar or structural_tag.",
    ),
    _option("guided_decoding_guide", "text", "guided_decoding_guide", "The schema, expression or grammar."),
)
"""Every option, in the order of the help text."""

BY_NAME: Mapping[str, Option] = MappingProxyType({option.name: option for option in OPTIONS})

Values = Mapping[str, Any]
"""Given options by name: ``int``, ``float``, ``str``, ``bool``, an array, or a list of the former."""
