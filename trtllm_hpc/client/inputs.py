"""From the options of a request to the inputs of the served model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trtllm_hpc.client.options import BY_NAME
from trtllm_hpc.client.request import Request
from trtllm_hpc.errors import InvalidRequest
from trtllm_hpc.wire.served_model import STREAM_INPUTS, ServedModel

PREPROCESSED: Mapping[str, str] = {
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
    "prompt_table_extra_id": "PROMPT_TABLE_EXTRA_ID",
}
"""Options that ``preprocessing`` reads, and its inputs (``preprocessing/config.pbtxt``, v0.16)."""

_TEXT_KINDS = ("texts", "numbers")
"""Kinds of options that ``tensorrt_llm`` has as tensors of token ids."""


def request_values(model: ServedModel, request: Request, prepared: Iterable[str] = ()) -> dict[str, Any]:
    """Return the inputs of a request by name, without those of its prompts.

    ``prepared`` are options that ``preprocessing`` has read. Raises InvalidRequest if the model lacks the
    input of an option or output.
    """
    left = {name: value for name, value in request.options.items() if name not in set(prepared)}
    values: dict[str, Any] = {}
    if model.takes_text and not all(isinstance(prompt, str) for prompt in request.prompts):
        raise InvalidRequest(f"Model {model.name!r} takes text, not token ids.", hint="--model tensorrt_llm")
    for name in () if model.takes_text else left:
        if BY_NAME[name].kind in _TEXT_KINDS:
            raise InvalidRequest(
                f"Model {model.name!r} takes {BY_NAME[name].flag} as token ids, which 'preprocessing' makes.",
                hint="ask a text instead of token ids, or choose another model with --model",
            )
    for name, value in left.items():
        values[_input_of(model, name)] = value
        if name == "prompt_embedding_table":
            values["prompt_vocab_size"] = len(value)
    for name, value in request.inputs.items():
        if name not in model.inputs:
            raise InvalidRequest(
                f"Model {model.name!r} has no input {name!r}.", hint=f"it has {', '.join(model.inputs)}"
            )
        values[name] = value
    for output in request.logits:
        if f"return_{output}" not in model.inputs:
            raise InvalidRequest(
                f"Model {model.name!r} cannot be asked for {output}.",
                hint="choose another model with --model",
            )
        values[f"return_{output}"] = True
    if request.stream:
        values |= {name: True for name in STREAM_INPUTS if name in model.inputs}
    return values


def _input_of(model: ServedModel, name: str) -> str:
    option = BY_NAME[name]
    for each in option.inputs:
        if each in model.inputs:
            return each
    raise InvalidRequest(
        f"Model {model.name!r} has no input for {option.flag} ({option.text or option.core}).",
        hint="leave it out, or choose another model with --model",
    )
