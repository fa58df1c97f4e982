"""The tensors of a request: from prompts and options to the inputs of the served model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trtllm_hpc.client.options import BY_NAME
from trtllm_hpc.client.request import Request
from trtllm_hpc.client.served_model import ALWAYS_SENT, LLM_API_LENGTH, STREAM_INPUTS, ServedModel
from trtllm_hpc.errors import InvalidRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tensors = dict[str, "NDArray[Any]"]

_TYPES: dict[str, type[Any]] = {
    "TYPE_BOOL": np.bool_,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
"""Types of Triton's configuration (``model_config.proto``)."""

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


def text_inputs(model: ServedModel, request: Request) -> dict[str, Any]:
    """Return the inputs of a request to a model that takes texts, by name; raises InvalidRequest."""
    if not model.takes_text:
        raise InvalidRequest(
            f"Model {model.name!r} takes token ids, not text.", hint="choose another one: --model ensemble"
        )
    if not all(isinstance(prompt, str) for prompt in request.prompts):
        raise InvalidRequest(f"Model {model.name!r} takes text, not token ids.", hint="--model tensorrt_llm")
    found: dict[str, Any] = {}
    if LLM_API_LENGTH not in model.inputs:
        found |= dict.fromkeys(ALWAYS_SENT, "")
    return found | _common(model, request, request.options)


def core_inputs(model: ServedModel, request: Request, prepared: Iterable[str]) -> dict[str, Any]:
    """Return the inputs of a request to a model that takes token ids, without those of its prompt.

    ``prepared`` are options that ``preprocessing`` has read. Raises InvalidRequest if the model lacks the
    input of an option or output.
    """
    left = {name: value for name, value in request.options.items() if name not in set(prepared)}
    for name in left:
        if BY_NAME[name].kind in _TEXT_KINDS:
            raise InvalidRequest(
                f"Model {model.name!r} takes {BY_NAME[name].flag} as token ids, which 'preprocessing' makes.",
                hint="ask a text instead of token ids, or choose another model with --model",
            )
    return _common(model, request, left)


def _common(model: ServedModel, request: Request, options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        found[_input_of(model, name)] = value
        if name == "prompt_embedding_table":
            found["prompt_vocab_size"] = len(value)
    for name, value in request.inputs.items():
        if name not in model.inputs:
            raise InvalidRequest(
                f"Model {model.name!r} has no input {name!r}.", hint=f"it has {', '.join(model.inputs)}"
            )
        found[name] = value
    for output in request.logits:
        if f"return_{output}" not in model.inputs:
            raise InvalidRequest(
                f"Model {model.name!r} cannot be asked for {output}.",
                hint="choose another model with --model",
            )
        found[f"return_{output}"] = True
    if request.stream:
        found |= {name: True for name in STREAM_INPUTS if name in model.inputs}
    return found


def _input_of(model: ServedModel, name: str) -> str:
    option = BY_NAME[name]
    for each in option.inputs:
        if each in model.inputs:
            return each
    raise InvalidRequest(
        f"Model {model.name!r} has no input for {option.flag} ({option.text or option.core}).",
        hint="leave it out, or choose another model with --model",
    )


def tensors(model: ServedModel, inputs: Mapping[str, Any], count: int) -> Tensors:
    """Return inputs, the same for ``count`` prompts, as tensors of the types in the model's configuration.

    Each is a text, number, truth value, list of these, or an array without the batch's dimension. Raises
    InvalidRequest if a value does not fit into its type.
    """
    return {name: _tensor(model, name, value, count) for name, value in inputs.items()}


def texts_tensor(model: ServedModel, texts: Sequence[str]) -> NDArray[Any]:
    """Return one text for each prompt of a batch as a tensor."""
    array = np.array([text.encode("utf-8", errors="replace") for text in texts], dtype=np.object_)
    return array.reshape(-1, 1) if model.batched else array


def prompt_tensors(model: ServedModel, prompts: Sequence[Sequence[int]]) -> Tensors:
    """Return the prompts of a batch as ``input_ids``, shorter ones filled up, and ``input_lengths``.

    Raises InvalidRequest if a prompt is empty, or an id does not fit.
    """
    longest = max(map(len, prompts))
    kind = _TYPES.get(model.inputs.get("input_ids", ""), np.int32)
    ids = np.zeros((len(prompts), longest), dtype=kind)
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise InvalidRequest("A prompt of token ids is empty.")
        for token in prompt:
            _refuse_misfit(model, "input_ids", kind, token)
        ids[row, : len(prompt)] = prompt
    lengths = np.array([[len(prompt)] for prompt in prompts], dtype=np.int32)
    return {"input_ids": ids, "input_lengths": lengths}


def _tensor(model: ServedModel, name: str, value: Any, count: int) -> NDArray[Any]:
    kind = _TYPES.get(model.inputs.get(name, ""), np.object_)
    if isinstance(value, np.ndarray):
        array = _converted(model, name, kind, value)
    else:
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in items:
            _refuse_misfit(model, name, kind, item)
        if kind is np.object_:
            items = [item.encode("utf-8", errors="replace") for item in items]
        array = np.array(items, dtype=kind)
    return np.repeat(array[None], count, axis=0) if model.batched else array


def _converted(model: ServedModel, name: str, kind: type[Any], array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "fiu" or kind is np.object_:
        raise InvalidRequest(
            f"The input {name!r} of model {model.name!r} is {np.dtype(kind).name}, not {array.dtype}."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(kind)
    if not np.array_equal(np.isfinite(converted), np.isfinite(array)):
        raise InvalidRequest(f"Numbers for {name!r} do not fit into {np.dtype(kind).name}.")
    return converted


def _refuse_misfit(model: ServedModel, name: str, kind: type[Any], value: Any) -> None:
    """Refuse a value that the type cannot hold as it is, instead of cutting it."""
    if kind is np.object_:
        fits, wanted, what = isinstance(value, str), "text", "text"
    elif kind is np.bool_:
        fits, wanted, what = isinstance(value, bool), "true or false", "bool"
    elif issubclass(kind, np.integer):
        least, most = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        wanted, what = f"a whole number from {least:,} to {most:,}", np.dtype(kind).name
    else:
        bound = float(np.finfo(kind).max)
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= bound
        wanted, what = f"a number of at most {bound:.3g}", np.dtype(kind).name
    if not fits:
        raise InvalidRequest(
            f"{value!r} does not fit into the input {name!r} of model {model.name!r}, which is {what}.",
            hint=f"it takes {wanted}",
        )
