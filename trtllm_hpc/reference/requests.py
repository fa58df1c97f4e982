"""What one request to the ``tensorrt_llm`` model asks, and what is refused.

Names, types and meanings of the tensors are those of NVIDIA's TensorRT-LLM
backend for Triton. What this version cannot do is refused by name, never
passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.engine_folder import EngineInfo

if TYPE_CHECKING:
    import numpy as np

    Inputs = Mapping[str, np.ndarray[Any, Any]]

NO_END = -1
"""The ``end_id`` that means: generate as many tokens as were asked for."""

GREEDY: dict[str, tuple[float, ...]] = {
    "beam_width": (1,),
    "num_return_sequences": (1,),
    "temperature": (1.0,),
    "runtime_top_k": (1, 0),
    "runtime_top_p": (1.0, 0.0),
    "len_penalty": (1.0, 0.0),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "min_length": (0, 1),
    "return_context_logits": (False,),
    "return_generation_logits": (False,),
    "stop": (False,),
    "streaming": (False,),
}
"""Inputs that change nothing at these values; every other value is refused.

``random_seed`` is not among them: any seed gives the same greedy output.
"""

WORD_LISTS = ("stop_words_list", "bad_words_list")


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to continue; the same on every rank."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    end_id: int
    """Generation ends after this token; ``NO_END`` for none."""
    pad_id: int
    return_log_probs: bool
    exclude_input: bool


@dataclass(frozen=True)
class Completion:
    """What the model made of a request."""

    new_tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Natural logarithm of each new token's probability; zeros if they were not asked for."""


def parse(inputs: Inputs, info: EngineInfo) -> GenerationRequest:
    """Read the inputs of one request.

    Raises:
        RequestFailed: the engine's limits forbid it, or this version cannot do it.
    """
    _refuse_batches(inputs)
    _refuse_unsupported(inputs)
    request = GenerationRequest(
        prompt=_prompt(inputs),
        max_new_tokens=int(_scalar(inputs, "request_output_len", 0)),
        end_id=int(_scalar(inputs, "end_id", NO_END)),
        pad_id=int(_scalar(inputs, "pad_id", 0)),
        return_log_probs=bool(_scalar(inputs, "return_log_probs", False)),
        exclude_input=bool(_scalar(inputs, "exclude_input_in_output", False)),
    )
    _check_limits(request, info)
    return request


def refuse_parameters(parameters: Mapping[str, object]) -> None:
    """Refuse request parameters: Triton's generate endpoint makes one of each JSON key that is no input.

    Raises:
        RequestFailed: there are any.
    """
    if parameters:
        names = ", ".join(sorted(parameters))
        raise RequestFailed(f"The reference backend does not know the request parameters: {names}.")


def _scalar(inputs: Inputs, name: str, default: float) -> Any:
    tensor = inputs.get(name)
    return default if tensor is None or tensor.size == 0 else tensor.reshape(-1)[0].item()


def _refuse_batches(inputs: Inputs) -> None:
    rows = inputs["input_ids"].shape[0]
    if rows != 1:
        raise RequestFailed(
            f"The reference backend takes one prompt a request; this one holds {rows}. Send {rows} requests."
        )


def _refuse_unsupported(inputs: Inputs) -> None:
    for name, harmless in GREEDY.items():
        value = _scalar(inputs, name, harmless[0])
        if value not in harmless:
            raise RequestFailed(
                f"{name}={_shown(value)} is not supported by the reference backend, which decodes greedily, "
                f"one answer a request. Leave it out or send {harmless[0]}."
            )
    for name in WORD_LISTS:
        if name in inputs and _has_words(inputs[name]):
            raise RequestFailed(f"{name} is not supported by the reference backend. Leave it out.")


def _shown(value: Any) -> str:
    """A value as the client wrote it: 0.7 comes out of a 32-bit float as 0.699999988."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _has_words(words: np.ndarray[Any, Any]) -> bool:
    """Whether a word list of shape [..., 2, n] names a word: its second row holds ends of words, then -1."""
    return bool((words[..., 1, :] >= 0).any())


def _prompt(inputs: Inputs) -> tuple[int, ...]:
    tokens = inputs["input_ids"].reshape(-1).tolist()
    length = int(_scalar(inputs, "input_lengths", len(tokens)))
    if not 0 <= length <= len(tokens):
        raise RequestFailed(f"input_lengths is {length}, but input_ids holds {len(tokens)} tokens.")
    return tuple(tokens[:length])


def _check_limits(request: GenerationRequest, info: EngineInfo) -> None:
    prompt, new = len(request.prompt), request.max_new_tokens
    if prompt == 0:
        raise RequestFailed("The prompt is empty: input_ids must hold at least one token.")
    if new < 1:
        raise RequestFailed(f"request_output_len (max_tokens) is {new}; it must be at least 1.")
    if prompt > info.max_input_len:
        raise RequestFailed(
            f"The prompt has {prompt} tokens; this engine was built for max_input_len {info.max_input_len}."
        )
    if prompt + new > info.max_seq_len:
        raise RequestFailed(
            f"The prompt's {prompt} tokens and the {new} asked for make {prompt + new}; "
            f"this engine was built for max_seq_len {info.max_seq_len}."
        )
    strangers = [token for token in request.prompt if not 0 <= token < info.vocab_size]
    if strangers:
        raise RequestFailed(
            f"input_ids holds {strangers[0]}; this engine's vocabulary is 0 to {info.vocab_size - 1}."
        )
    for name, token in (("end_id", request.end_id), ("pad_id", request.pad_id)):
        if not NO_END <= token < info.vocab_size:
            raise RequestFailed(f"{name} is {token}; this engine's vocabulary is 0 to {info.vocab_size - 1}.")
