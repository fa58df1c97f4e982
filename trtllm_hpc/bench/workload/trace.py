"""Requests recorded with their times: Mooncake's layout, or the workload file of an earlier measurement."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from trtllm_hpc.bench.workload.dataset import (
    OUTPUT_LENGTH_KEYS,
    DatasetEntry,
    counted,
    read_entries,
    request_of,
    too_long_note,
)
from trtllm_hpc.bench.workload.prompt_source import (
    Codes,
    PromptShape,
    draw_codes,
    generated_requests,
    random_source,
)
from trtllm_hpc.bench.workload.request import BuiltWorkload, WorkloadRequest, WorkloadSpec

BLOCK_TOKENS = 512
"""Tokens of one of Mooncake's ``hash_ids`` (FAST25-release/traces of kvcache-ai/Mooncake)."""

_INPUT_LENGTH_KEYS = ("input_length", "input_tokens")
_TIME_KEYS = ("due_s", "timestamp")
"""In seconds, and in milliseconds."""
_DIGITS = 9
_CACHED_BLOCKS = 4096


def trace(spec: WorkloadSpec) -> BuiltWorkload:
    """Return the first requests of the file, in the order of their times; they are not repeated.

    Times are ``due_s`` in seconds or ``timestamp`` in milliseconds; they run
    ``speed`` times faster. For an entry without a prompt one of its length is
    generated, in which the same ``hash_ids`` stand for the same tokens.
    """
    entries, has_prompts = _read(spec)
    if has_prompts:
        requests, notes = counted(spec, (_recorded(entry, spec) for entry in entries))
    else:
        requests, notes = _generate(spec, entries)
    if spec.settings.requests is not None:
        wanted = min(spec.settings.requests + (spec.settings.warmup_requests or 0), spec.count)
        if len(requests) < wanted:
            notes.append(f"The trace has only {len(requests):,} requests instead of {wanted:,}.")
    return BuiltWorkload(requests, notes, len(entries))


def check_trace(spec: WorkloadSpec) -> None:
    """Check every entry of the file, as far as possible without a tokenizer.

    Raises ConfigError if an entry makes no request; with file and line.
    """
    entries, has_prompts = _read(spec)
    for entry in entries:
        if has_prompts:
            _recorded(entry, spec)
        else:
            input_length(entry)
            _hash_ids(entry)
            entry.length(OUTPUT_LENGTH_KEYS)


def _read(spec: WorkloadSpec) -> tuple[list[DatasetEntry], bool]:
    """Return the entries in the order of their times, and whether they have prompts, not only lengths."""
    entries = [entry for [entry] in timed([[it] for it in read_entries(spec.file)], spec.workload.speed)]
    return entries, has_prompt(entries[0])


def timed(groups: Sequence[Sequence[DatasetEntry]], speed: float) -> list[list[DatasetEntry]]:
    """Return the groups in the order of their first entries' times; only the other entries may have none."""
    first_s = min(_time(group[0]) for group in groups)

    def with_time(entry: DatasetEntry) -> DatasetEntry:
        time_s = entry.seconds(*_TIME_KEYS)
        return entry if time_s is None else entry._replace(due_s=round((time_s - first_s) / speed, _DIGITS))

    found = [[with_time(entry) for entry in group] for group in groups]
    return sorted(found, key=lambda group: group[0].due_s or 0.0)


def _time(entry: DatasetEntry) -> float:
    found = entry.seconds(*_TIME_KEYS)
    if found is None:
        message = "has no time: expected due_s in seconds, or timestamp in milliseconds"
        raise entry.error(message, hint="use workload.kind dataset for a file without times")
    return found


def has_prompt(entry: DatasetEntry) -> bool:
    """Return whether the entry has a prompt; else one of its length is generated."""
    return not any(key in entry.values for key in _INPUT_LENGTH_KEYS) or any(
        key in entry.values for key in ("prompt", "token_ids")
    )


def _recorded(entry: DatasetEntry, spec: WorkloadSpec) -> WorkloadRequest:
    request = request_of(entry, spec)
    if request is None:
        raise entry.error("the prompt is empty")
    return request


def _generate(spec: WorkloadSpec, entries: Sequence[DatasetEntry]) -> tuple[list[WorkloadRequest], list[str]]:
    """Return the requests of entries that have only lengths."""
    seed, shapes, too_long = spec.settings.seed, list[PromptShape](), 0

    @lru_cache(_CACHED_BLOCKS)
    def block(number: int) -> Codes:
        return draw_codes(random_source(seed, f"block {number}"), BLOCK_TOKENS)

    for entry in entries:
        if len(shapes) == spec.count:
            break
        length = input_length(entry)
        if spec.limit is not None and length > spec.limit:
            too_long += 1
            continue
        shared = [block(number) for number in _hash_ids(entry)[: -(-length // BLOCK_TOKENS)]]
        own = draw_codes(random_source(seed, entry.source), max(0, length - BLOCK_TOKENS * len(shared)))
        tokens = entry.length(OUTPUT_LENGTH_KEYS) or spec.settings.max_tokens
        codes = np.concatenate([*shared, own])[:length]
        shapes.append(PromptShape(codes, tokens, entry.due_s, entry.source))
    if not shapes:
        raise spec.all_too_long()
    requests, notes = generated_requests(spec, shapes)
    if too_long:
        notes = [too_long_note(too_long, too_long + len(shapes), "requests", spec.limit), *notes]
    return requests, notes


def input_length(entry: DatasetEntry) -> int:
    """Return the tokens of the prompt; raises ConfigError if the entry has no such number."""
    length = entry.length(_INPUT_LENGTH_KEYS)
    if length is None:
        raise entry.error(f"{_INPUT_LENGTH_KEYS[0]} must be a whole number of at least 1")
    return length


def _hash_ids(entry: DatasetEntry) -> list[int]:
    """Return the numbers of the blocks that the prompt begins with."""
    hashes = entry.values.get("hash_ids") or []
    if not isinstance(hashes, list) or not all(type(number) is int for number in hashes):
        raise entry.error(f"hash_ids must be a list of whole numbers; found {hashes!r}")
    return hashes
