"""Reads and checks one request to the ``tensorrt_llm`` model.

Names, types, defaults and meanings of the tensors are those of NVIDIA's TensorRT-LLM 0.16 and its backend for
Triton (``inflight_batcher_llm/src/utils.cc`` of tensorrtllm_backend v0.16.0,
``cpp/tensorrt_llm/executor/samplingConfig.cpp`` and ``layers/defaultDecodingParams.h`` of TensorRT-LLM). What
this backend cannot do is refused by name, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, pairwise
from typing import Any

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.engine_config import EngineInfo
from trtllm_hpc.reference.generation import NO_END, GenerationRequest, Sampling, Words
from trtllm_hpc.reference.inputs import KNOWN_INPUTS, Inputs, Row, named, refusal, refuse_unsupported

HARMLESS_PARAMETERS = frozenset({"Streaming"})
"""Request parameters that TensorRT-LLM's own client sends besides the tensor of the same meaning."""

_SLIP = 0.8
"""How alike two names are when one is taken for a slip of the other: above the ratio of "id" and "end_id"."""

_REQUEST_TYPE = "triton_trtllm_request_type"

MOST_SEQUENCES = 1024
"""Most sequences of one prompt: without a limit they would fill the memory before generation starts."""

_SEEDS = 1 << 64


@dataclass(frozen=True)
class Part:
    """One answer to a Triton request: for one row of its batch and one of its return sequences."""

    request: GenerationRequest
    batch_index: int | None = None
    """Index of its prompt in the request; ``None`` for the only one, since upstream does not send it then."""
    sequence_index: int | None = None
    """Its index among the sequences of its prompt; ``None`` for the only one."""


def parse(inputs: Inputs, info: EngineInfo, *, decoupled: bool) -> tuple[Part, ...]:
    """Read the inputs of one Triton request; one that stops another, with the same id, has no parts.

    Raises RequestFailed if it exceeds the engine's limits, or this backend does not support it.
    """
    stop = inputs.get("stop")
    if stop is not None and stop.any():
        return ()
    prompts = inputs.get("input_ids")
    if prompts is None:
        raise RequestFailed("input_ids is missing: it must hold the tokens of the prompt.")
    batch = [Row({name: array[index] for name, array in inputs.items()}) for index in range(len(prompts))]
    parts = tuple(
        part
        for index, row in enumerate(batch)
        for part in _sequences(row, _request(row, info), index if len(batch) > 1 else None)
    )
    if not decoupled and len(parts) > 1:
        raise RequestFailed(
            f"The request wants {len(parts)} answers, but a model that is not decoupled sends one. "
            "Send one prompt a request, or serve with repository.decoupled: true."
        )
    if not decoupled and parts[0].request.streaming:
        raise RequestFailed(
            "streaming=true needs a decoupled model. Leave it out, or serve with repository.decoupled: true."
        )
    return parts


def check_parameters(request: Any) -> None:
    """Refuse parameters of a Triton request that were meant as inputs; others are ignored, as upstream does.

    Triton's generate endpoint makes a parameter of each JSON key that is not an input of the model. Raises
    RequestFailed if one has the name of an input, or almost, is not UTF-8, or asks for disaggregated serving.
    """
    try:
        parameters = json.loads(request.parameters() or "{}")
    except ValueError as error:
        # Triton's own parser lets such bytes pass.
        raise RequestFailed(f"A request parameter is not valid UTF-8: {error}.") from error
    for name in sorted(set(parameters) - HARMLESS_PARAMETERS):
        near = get_close_matches(name, KNOWN_INPUTS, n=1, cutoff=_SLIP)
        if near:
            meant = f"Did you mean {near[0]}?" if near[0] != name else "Leave it out."
            raise RequestFailed(f"{name} is not an input of this model and would change nothing. {meant}")
    kind = parameters.get(_REQUEST_TYPE, "context_and_generation")
    if kind != "context_and_generation":
        raise refusal(f"{_REQUEST_TYPE}={kind}", "disaggregated serving")


def _sequences(row: Row, request: GenerationRequest, index: int | None) -> list[Part]:
    """The parts of the answer to one prompt.

    They differ by their seed: each adds its index (``LlmRequest::createChildRequest`` in TensorRT-LLM's
    llmRequest.cpp).
    """
    count = row.integer("num_return_sequences", 1, least=1, most=MOST_SEQUENCES)
    seed = request.sampling.seed
    return [
        Part(
            replace(request, sampling=replace(request.sampling, seed=(seed + sequence) % _SEEDS)),
            index,
            sequence if count > 1 else None,
        )
        for sequence in range(count)
    ]


def _request(row: Row, info: EngineInfo) -> GenerationRequest:
    refuse_unsupported(row)
    if "request_output_len" not in row:
        # Triton only compares the number of inputs with that of the required ones.
        raise RequestFailed(f"{named('request_output_len')} is missing: the most tokens to generate.")
    request = GenerationRequest(
        prompt=_prompt(row),
        max_new_tokens=row.integer("request_output_len", least=1),
        end_id=row.integer("end_id", NO_END, least=NO_END, most=info.vocab_size - 1),
        sampling=_sampling(row),
        stop_words=_stop_words(row, info),
        return_log_probs=row.flag("return_log_probs"),
        exclude_input=row.flag("exclude_input_in_output"),
        streaming=row.flag("streaming"),
    )
    _check_lengths(request, info)
    _check_vocabulary("input_ids", request.prompt, info)
    return request


def _prompt(row: Row) -> tuple[int, ...]:
    array = row.array("input_ids")
    tokens = [] if array is None else array.tolist()
    length = row.integer("input_lengths", len(tokens))
    if not 0 <= length <= len(tokens):
        raise RequestFailed(f"input_lengths is {length}, but input_ids holds {len(tokens)} tokens.")
    return tuple(tokens[:length])


def _sampling(row: Row) -> Sampling:
    """Read the sampling settings.

    Without ``runtime_top_k`` and ``runtime_top_p``, or with zeros, decoding is
    greedy; if only one is set, the other sets no limit. A temperature of 0 is
    greedy, too: TensorRT-LLM divides the logits by it plus 1e-6.
    """
    top_k = row.integer("runtime_top_k", least=0)
    top_p = row.number("runtime_top_p", 0.0, least=0, most=1)
    temperature = row.number("temperature", 1.0, least=0)
    repetition = row.number("repetition_penalty", 1.0)
    if repetition <= 0:
        raise RequestFailed(f"repetition_penalty is {repetition:.6g}; it must be above 0.")
    if temperature == 0 or (top_k == 0 and top_p == 0):
        top_k = 1
    return Sampling(
        temperature=temperature or 1.0,
        top_k=top_k,
        top_p=top_p or 1.0,
        repetition_penalty=repetition,
        min_new_tokens=row.integer("min_length", least=0),
        seed=row.integer("random_seed") % _SEEDS,
    )


def _stop_words(row: Row, info: EngineInfo) -> Words:
    """Read words in upstream's layout: a row with all their tokens, and a row with their ends, then -1."""
    name = "stop_words_list"
    array = row.array(name)
    if array is None:
        return ()
    tokens, ends = array.tolist()
    count = ends.index(-1) if -1 in ends else len(ends)
    bounds = list(pairwise([0, *ends[:count]]))
    if set(ends[count:]) - {-1} or any(not start < end <= len(tokens) for start, end in bounds):
        raise RequestFailed(
            f"The second row of {name} is {ends}; it must hold the ends of the words within "
            "the first row, each above the one before, and then -1."
        )
    words = tuple(tuple(tokens[start:end]) for start, end in bounds)
    _check_vocabulary(name, chain.from_iterable(words), info)
    return words


def _check_lengths(request: GenerationRequest, info: EngineInfo) -> None:
    prompt, new = len(request.prompt), request.max_new_tokens
    total = prompt + new
    if prompt == 0:
        raise RequestFailed("The prompt is empty: input_ids must hold at least one token.")
    if prompt > info.max_input_len:
        raise RequestFailed(
            f"The prompt has {prompt} tokens; this engine was built for max_input_len {info.max_input_len}."
        )
    if total > info.max_seq_len:
        raise RequestFailed(
            f"The prompt's {prompt} tokens and the {new} asked for make {total}; "
            f"this engine was built for max_seq_len {info.max_seq_len}."
        )


def _check_vocabulary(name: str, tokens: Iterable[int], info: EngineInfo) -> None:
    outside = next((token for token in tokens if not 0 <= token < info.vocab_size), None)
    if outside is not None:
        raise RequestFailed(
            f"{name} holds {outside}; this engine's vocabulary is 0 to {info.vocab_size - 1}."
        )
