"""The options of a request, and what carries them in each kind of served model.

The names are those of ``inflight_batcher_llm_client.py`` and ``end_to_end_grpc_client.py``
(tensorrtllm_backend v0.16), in underscores. The inputs are those of ``all_models/inflight_batcher_llm``
(v0.16; v0.19 for guided decoding) and of ``triton_backend/all_models/llmapi`` (TensorRT-LLM 1.2). The keys of
OpenAI's completions are OpenAI's, and for the rest those of ``trtllm-serve``
(``tensorrt_llm/serve/openai_protocol.py``), which vLLM shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from trtllm_hpc.wire.served_model import ServedModel

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

    def input_of(self, model: ServedModel) -> str:
        """Return the input of a model of Triton that carries the option; empty if the model has none."""
        return next((each for each in (self.text, self.core, self.llm_api) if each in model.inputs), "")


_LLM_API = {
    **{name: name for name in ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed")},
    **{name: name for name in ("presence_penalty", "frequency_penalty")},
    "stop_words": "stop",
    "exclude_input": "exclude_input_from_output",
}
"""Inputs of the LLM API's model, without the ``sampling_param_`` with which each begins."""
_OPENAI = {
    **{name: name for name in ("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "seed")},
    **{f"{kind}_penalty": f"{kind}_penalty" for kind in ("repetition", "presence", "frequency", "length")},
    "return_sequences": "n",
    "stop_words": "stop",
    "log_probs": "logprobs",
}


def _option(name: str, kind: Kind, help: str, text: str | None = None, *, core: str | None = None) -> Option:
    """An option whose inputs have its name, but for ``text`` and, in ``tensorrt_llm``, ``core``."""
    text = name if text is None else text
    llm_api = f"sampling_param_{_LLM_API[name]}" if name in _LLM_API else ""
    return Option(name, kind, help, text, text if core is None else core, llm_api, _OPENAI.get(name, ""))


OPTIONS: tuple[Option, ...] = (
    _option("max_tokens", "count", "Most tokens of the answer.", core="request_output_len"),
    _option("min_tokens", "count", "Fewest tokens of the answer.", "min_length"),
    _option("temperature", "number", "Randomness; alone it leaves Triton's models greedy."),
    _option(
        "top_k", "count", "Sample among the K likeliest tokens; 1 is greedy, 0 is all.", core="runtime_top_k"
    ),
    _option("top_p", "number", "Sample among the likeliest tokens up to this share.", core="runtime_top_p"),
    _option("min_p", "number", "Leave out tokens less likely than this share of the likeliest."),
    _option("seed", "count", "Seed of the sampling.", "random_seed"),
    _option("repetition_penalty", "number", "Above 1: fewer repetitions."),
    _option("presence_penalty", "number", "Taken off tokens that were there."),
    _option("frequency_penalty", "number", "The same, each time they were there."),
    _option("length_penalty", "number", "Above 0: a beam search prefers long answers.", core="len_penalty"),
    _option("beam_width", "count", "Beams of a beam search; 1 is none."),
    _option("return_sequences", "count", "Answers to each prompt.", "num_return_sequences"),
    _option("stop_words", "texts", "The answer ends after this text.", core="stop_words_list"),
    _option("bad_words", "texts", "This text is never generated.", core="bad_words_list"),
    _option("embedding_bias_words", "texts", "Make this text more or less likely.", core="embedding_bias"),
    _option("embedding_bias_weights", "numbers", "By how much, for each of them.", core="embedding_bias"),
    _option("end_id", "count", "The token that ends an answer; the tokenizer's by default."),
    _option("pad_id", "count", "The token that fills up shorter answers."),
    _option("exclude_input", "flag", "Leave the prompt out of the answer.", "exclude_input_in_output"),
    _option("log_probs", "flag", "Ask for the logarithm of each token's probability.", "return_log_probs"),
    _option("lora_task_id", "count", "LoRA adapter that the server has, or that --lora-dir sends."),
    _option(
        "draft_tokens",
        "ids",
        "Token ids that the answer probably begins with, e.g. 5,7,9; the server verifies them.",
        "",
        core="draft_input_ids",
    ),
    _option("num_draft_tokens", "count", "Tokens that the draft model proposes at once.", core=""),
    _option(
        "prompt_embedding_table",
        "array",
        "File (.npy) with the embeddings of virtual tokens, [tokens, hidden size]."
        " Ids from the vocabulary's size on stand for them.",
    ),
    _option(
        "prompt_table_extra_id",
        "count",
        "Tells prompts with different tables apart, where blocks of the KV cache are reused.",
        core="prompt_table_extra_ids",
    ),
    _option(
        "guided_decoding_guide_type",
        "text",
        "What the answer must follow: json, json_schema, regex, ebnf_grammar or structural_tag.",
    ),
    _option("guided_decoding_guide", "text", "The schema, expression or grammar."),
)
BY_NAME: Mapping[str, Option] = MappingProxyType({option.name: option for option in OPTIONS})

Values = Mapping[str, Any]
"""Given options by name: ``int``, ``float``, ``str``, ``bool``, an array, or a list of the former."""
