"""Given prompts: count their tokens, send token ids where the model takes them, leave out long ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from trtllm_hpc.bench.workload.prompt_source import TOKENIZER_HINT
from trtllm_hpc.bench.workload.random_numbers import random_source
from trtllm_hpc.bench.workload.request import (
    BY_TOKENIZER,
    BY_WORKLOAD,
    Request,
    WorkloadSpec,
    settings_error,
)


def counted(spec: WorkloadSpec, prompts: Iterator[Request]) -> tuple[list[Request], list[str]]:
    """Return the first ``spec.count`` prompts that are not too long, and notes for readers of the results.

    ``prompts`` may yield a prompt again, but must end if all are too long. Raises ConfigError if they are, or
    if there is no tokenizer where one is needed.
    """
    known: dict[Request, Request | None] = {}
    kept: list[Request] = []
    while batch := list(islice(prompts, spec.count - len(kept))):
        new = [request for request in dict.fromkeys(batch) if request not in known]
        known.update(zip(new, _encoded(spec, new), strict=True))
        kept += [found for request in batch if (found := known[request]) is not None]
        if not kept and not new:
            break
    if not kept:
        raise spec.all_too_long()
    notes = []
    if left_out := sum(found is None for found in known.values()):
        notes.append(too_long_note(left_out, len(known), "prompts", spec.limit))
    if spec.tokenizer is None and not (spec.takes_token_ids or spec.counted_by_server):
        notes.append("The prompts' tokens were not counted: no tokenizer was found.")
    return kept, notes


def _encoded(spec: WorkloadSpec, requests: Sequence[Request]) -> Iterator[Request | None]:
    """Yield each request with its length, or ``None`` if it is too long."""
    texts = [request.prompt for request in requests if request.prompt is not None]
    encoded: Iterator[list[int]] = iter(())
    if spec.tokenizer is not None:
        encoded = iter(spec.tokenizer.encode(texts))
    elif spec.takes_token_ids and texts:
        message = "the core model takes token ids, and there is no tokenizer to encode the texts"
        raise settings_error("tokenizer", message, code="no-tokenizer", hint=TOKENIZER_HINT)
    elif spec.workload.max_input_tokens is not None and not spec.takes_token_ids:
        message = "prompts can only be limited with a tokenizer, and none was found"
        raise settings_error("max_input_tokens", message, code="no-tokenizer", hint=TOKENIZER_HINT)
    for request in requests:
        ids = request.token_ids if request.prompt is None else next(encoded, None)
        if ids is None:
            yield request
        elif spec.limit is not None and len(ids) > spec.limit:
            yield None
        elif spec.takes_token_ids or request.prompt is None:
            sent = {"prompt": None, "token_ids": tuple(ids)}
            yield replace(request, **sent, input_tokens=len(ids), input_by=BY_WORKLOAD)  # type: ignore[arg-type]
        else:
            yield replace(request, input_tokens=len(ids), input_by=BY_TOKENIZER)


def too_long_note(left_out: int, seen: int, what: str, limit: int | None) -> str:
    """Return the sentence about prompts or requests that were left out."""
    return f"Left out {left_out:,} of {seen:,} {what}: longer than {limit} tokens."


def random_order(count: int, seed: int) -> Iterator[int]:
    """Yield all numbers below ``count`` in random order, then again in another, without end."""
    source = random_source(seed, "order")
    while True:
        yield from source.permutation(count).tolist()
