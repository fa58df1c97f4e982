"""A request to a served model, its options with their inputs and keys, and its answer.

The names of options are those of ``inflight_batcher_llm_client.py`` and ``end_to_end_grpc_client.py``
(tensorrtllm_backend v0.16), with underscores. The inputs are those of ``all_models/inflight_batcher_llm``
(v0.16) and of ``triton_backend/all_models/llmapi`` (TensorRT-LLM 1.2). The keys of OpenAI's completions are
OpenAI's, or those of ``trtllm-serve`` (``tensorrt_llm/serve/openai_protocol.py``) and vLLM.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from trtllm_hpc.client.lora import Adapter
from trtllm_hpc.wire.served_model import ServedModel

Kind = Literal["count", "number", "texts", "flag"]
"""Type of an option's value: a whole number, any number, several texts, or a boolean."""


@dataclass(frozen=True)
class RequestOption:
    """One option of a request; an input or key that a kind of model lacks is empty."""

    name: str
    kind: Kind
    help: str
    text: str
    """Input of ``ensemble`` and ``tensorrt_llm_bls``."""
    core: str
    """Input of ``tensorrt_llm``."""
    llm_api: str
    """Input of the LLM API's model."""
    openai: str
    """Key of OpenAI's completions."""

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    def input_of(self, model: ServedModel) -> str:
        """Return the option's input of a Triton model; empty if the model lacks it."""
        names = (self.text, self.core, self.llm_api)
        return next((name for name in names if name in model.inputs), "")


_HELP: Mapping[str, tuple[Kind, str]] = {
    "max_tokens": ("count", "Maximum tokens of the answer."),
    "min_tokens": ("count", "Minimum tokens of the answer."),
    "temperature": ("number", "Randomness. Without top-k or top-p Triton's models stay greedy."),
    "top_k": ("count", "Sample among the K likeliest tokens; 1: greedy, 0: all tokens."),
    "top_p": ("number", "Sample among the likeliest tokens whose probabilities add up to this."),
    "min_p": ("number", "Exclude tokens below this share of the likeliest token's probability."),
    "seed": ("count", "Seed of the sampling."),
    "repetition_penalty": ("number", "Values above 1 reduce repetitions."),
    "presence_penalty": ("number", "Penalty for tokens that have occurred."),
    "frequency_penalty": ("number", "Penalty for each earlier occurrence of a token."),
    "beam_width": ("count", "Number of beams; 1: no beam search."),
    "return_sequences": ("count", "Number of answers to each prompt."),
    "stop_words": ("texts", "Text that ends the answer."),
    "bad_words": ("texts", "Text that is never generated."),
    "end_id": ("count", "Token ID that ends an answer; by default the tokenizer's."),
    "pad_id": ("count", "Token ID that fills up shorter answers."),
    "exclude_input": ("flag", "Leave the prompt out of the answer."),
    "log_probs": ("flag", "Return the logarithm of each token's probability."),
    "context_logits": ("flag", "Return the prompt's logits, which the engine must gather."),
    "generation_logits": ("flag", "Return the answer's logits, which the engine must gather."),
    "lora_task_id": ("count", "LoRA adapter that the server has, or that --lora-dir sends."),
}
_TEXT = {
    "min_tokens": "min_length",
    "seed": "random_seed",
    "return_sequences": "num_return_sequences",
    "exclude_input": "exclude_input_in_output",
    "log_probs": "return_log_probs",
    "context_logits": "return_context_logits",
    "generation_logits": "return_generation_logits",
}
_CORE = {
    "max_tokens": "request_output_len",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "stop_words": "stop_words_list",
    "bad_words": "bad_words_list",
}
_SHARED = (
    *("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed"),
    *("presence_penalty", "frequency_penalty"),
)
"""Options with the same name in the LLM API and in OpenAI's protocol."""
_LLM_API = {name: name for name in _SHARED} | {
    "stop_words": "stop",
    "exclude_input": "exclude_input_from_output",
}
_OPENAI = {name: name for name in (*_SHARED, "min_tokens", "repetition_penalty")} | {
    "return_sequences": "n",
    "stop_words": "stop",
    "log_probs": "logprobs",
}


def _option(name: str, kind: Kind, help: str) -> RequestOption:
    text = _TEXT.get(name, name)
    llm_api = f"sampling_param_{_LLM_API[name]}" if name in _LLM_API else ""
    return RequestOption(name, kind, help, text, _CORE.get(name, text), llm_api, _OPENAI.get(name, ""))


BY_NAME: Mapping[str, RequestOption] = MappingProxyType(
    {name: _option(name, *words) for name, words in _HELP.items()}
)


TIMEOUT_S = 120.0
RETRIES = 2
MAX_TOKENS = 16
"""Default of the most output tokens, which Triton's models require."""

Prompt = str | Sequence[int]
"""A text, or its token IDs."""

Message = Mapping[str, Any]
"""Message of a chat in OpenAI's format: ``{"role": "user", "content": "..."}``."""

OnText = Callable[[str], object]
"""Called with each new part of a text."""

Counted = Literal["server", "responses"]
"""Source of an answer's token count: the exact count of the server, or the number of streamed responses."""


@dataclass(frozen=True)
class Request:
    """A request to a model."""

    prompt: Prompt
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options by name of :data:`BY_NAME`: numbers, booleans, texts, or lists of texts."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Further inputs by the served model's names, or further keys of OpenAI's protocol."""
    adapter: Adapter | None = None
    """LoRA adapter, whose weights are sent if the server lacks them."""
    stream: bool = False
    """Whether to stream the answer."""
    timeout_s: float = TIMEOUT_S
    """Time limit of the whole answer in seconds."""
    retries: int = RETRIES
    """Most repeats after the server is unreachable or lost before any part of the answer arrives."""
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """ID on the server, by which the request can be ended."""
    messages: tuple[Message, ...] = ()
    """Messages of a chat over OpenAI's protocol; ``prompt`` repeats the last one. Empty: not a chat."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """HTTP headers, or gRPC metadata, of this request, such as ``traceparent``."""


@dataclass(frozen=True)
class Answer:
    """The model's answer to one prompt, with its times."""

    protocol: str
    """``grpc`` or ``openai``."""
    text: str
    """First text of the answer; empty if the model returns token IDs."""
    latency_s: float
    """Seconds from the call to the whole answer."""
    output_tokens: int | None = None
    """Tokens of the first text, including a repeated prompt; ``None`` if unknown."""
    counted_by: Counted | None = None
    texts: tuple[str, ...] = ()
    """All texts: those of beams or of ``return_sequences``."""
    token_ids: tuple[tuple[int, ...], ...] = ()
    """Token IDs of each text, if the model returns token IDs."""
    first_text_s: float | None = None
    """Seconds from the call to the first text; ``None`` without streaming."""
    is_stopped: bool = False
    """Whether the answer was ended early."""
    log_probs: tuple[float, ...] | None = None
    """Log probability of each token of the first text, if requested."""
    responses: int = 1
    """Number of the server's responses; in a stream usually one per token."""
    request_id: str = ""
    """ID of the request on the server."""
    logits: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """NumPy arrays ``context_logits`` and ``generation_logits``, if requested; in JSON their shapes."""
