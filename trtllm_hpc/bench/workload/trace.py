"""Requests recorded with their times: Mooncake's layout, or the workload file of an earlier measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from trtllm_hpc.bench.workload.dataset import OUTPUT_LENGTH_KEYS, Entry, read_entries, request_of
from trtllm_hpc.bench.workload.given_prompts import counted, too_long_note
from trtllm_hpc.bench.workload.prompt_source import PromptShape, generated_requests
from trtllm_hpc.bench.workload.random_numbers import Codes, draw_codes, random_source
from trtllm_hpc.bench.workload.request import BuiltWorkload, Request, WorkloadSpec

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
    entries, generated = _read(spec)
    if generated:
        requests, notes = _generate(spec, entries)
    else:
        requests, notes = counted(spec, (_recorded(entry, spec) for entry in entries))
    if spec.settings.requests is not None:
        wanted = min(spec.settings.requests + (spec.settings.warmup_requests or 0), spec.count)
        if len(requests) < wanted:
            notes.append(f"The trace has only {len(requests):,} requests instead of {wanted:,}.")
    return BuiltWorkload(requests, [*notes, *_too_short(spec, entries)], len(entries))


def _too_short(spec: WorkloadSpec, timed: Sequence[Entry]) -> Iterator[str]:
    """Yield a sentence if the trace ends before the measurement should; a closed loop ignores its times."""
    settings, length_s = spec.settings, timed[-1].due_s or 0.0
    if settings.duration_seconds is None or settings.arrival != "trace" or settings.closed_loop:
        return
    wanted_s = (settings.warmup_seconds or 0.0) + settings.duration_seconds
    if length_s + length_s / max(1, len(timed) - 1) < wanted_s:
        yield f"The trace ends after {length_s:g} s instead of {wanted_s:g} s, and so does the measurement."


def check_trace(spec: WorkloadSpec) -> None:
    """Check every entry of the file, as far as possible without a tokenizer.

    Raises ConfigError if an entry makes no request; with file and line.
    """
    entries, generated = _read(spec)
    for entry in entries:
        if generated:
            input_length(entry)
            hash_ids(entry)
            entry.length(OUTPUT_LENGTH_KEYS)
        else:
            _recorded(entry, spec)


def _read(spec: WorkloadSpec) -> tuple[list[Entry], bool]:
    """The entries in the order of their times, and whether prompts must be generated from their lengths."""
    groups = timed([[entry] for entry in read_entries(spec.file)], spec.workload.speed)
    entries = [entry for [entry] in groups]
    generated = [has_only_lengths(entry) for entry in entries]
    if any(generated) and not all(generated):
        other = entries[generated.index(not generated[0])]
        raise other.error("has another layout than the entries before it: prompts, or only lengths")
    return entries, generated[0]


def timed(groups: Sequence[Sequence[Entry]], speed: float) -> list[list[Entry]]:
    """Return the groups in the order of their first entries' times; only the other entries may have none."""
    first_s = min(_time(group[0]) for group in groups)

    def with_time(entry: Entry) -> Entry:
        time_s = entry.seconds(*_TIME_KEYS)
        return entry if time_s is None else entry._replace(due_s=round((time_s - first_s) / speed, _DIGITS))

    found = [[with_time(entry) for entry in group] for group in groups]
    return sorted(found, key=lambda group: group[0].due_s or 0.0)


def _time(entry: Entry) -> float:
    found = entry.seconds(*_TIME_KEYS)
    if found is None:
        message = "has no time: expected due_s in seconds, or timestamp in milliseconds"
        raise entry.error(message, hint="use workload.kind dataset for a file without times")
    return found


def has_only_lengths(entry: Entry) -> bool:
    """Return whether the prompt must be generated."""
    return any(key in entry.values for key in _INPUT_LENGTH_KEYS) and not any(
        key in entry.values for key in ("prompt", "token_ids")
    )


def _recorded(entry: Entry, spec: WorkloadSpec) -> Request:
    request = request_of(entry, spec)
    if request is None:
        raise entry.error("the prompt is empty")
    return request


def _generate(spec: WorkloadSpec, timed: Sequence[Entry]) -> tuple[list[Request], list[str]]:
    """Requests of entries that have only lengths."""
    kept: list[tuple[Entry, int]] = []
    too_long = 0
    for entry in timed:
        if len(kept) == spec.count:
            break
        length = input_length(entry)
        if spec.limit is not None and length > spec.limit:
            too_long += 1
        else:
            kept.append((entry, length))
    if not kept:
        raise spec.all_too_long()
    requests, notes = generated_requests(spec, _shapes(spec, kept))
    if too_long:
        notes = [too_long_note(too_long, too_long + len(kept), "requests", spec.limit), *notes]
    return requests, notes


def input_length(entry: Entry) -> int:
    """Return the tokens of the prompt."""
    length = entry.length(_INPUT_LENGTH_KEYS)
    if length is None:
        raise entry.error(f"{_INPUT_LENGTH_KEYS[0]} must be a whole number of at least 1")
    return length


def hash_ids(entry: Entry) -> list[int]:
    """Return the numbers of the blocks that the prompt begins with."""
    hashes = entry.values.get("hash_ids") or []
    if not isinstance(hashes, list) or not all(type(number) is int for number in hashes):
        raise entry.error(f"hash_ids must be a list of whole numbers; found {hashes!r}")
    return hashes


def _shapes(spec: WorkloadSpec, kept: Sequence[tuple[Entry, int]]) -> Iterator[PromptShape]:
    codes = PromptCodes(spec.settings.seed)
    for entry, length in kept:
        tokens = entry.length(OUTPUT_LENGTH_KEYS) or spec.settings.max_tokens
        yield PromptShape(codes.of(entry, length), tokens, entry.due_s, f"line {entry.line}")


class PromptCodes:
    """Makes the tokens of prompts of which only lengths and blocks are known: equal blocks, equal tokens."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._block = lru_cache(_CACHED_BLOCKS)(
            lambda number: draw_codes(random_source(seed, f"block {number}"), BLOCK_TOKENS)
        )

    def of(self, entry: Entry, length: int) -> Codes:
        """Return the codes of one prompt."""
        shared = [self._block(number) for number in hash_ids(entry)[: -(-length // BLOCK_TOKENS)]]
        rest = max(0, length - BLOCK_TOKENS * len(shared))
        own = draw_codes(random_source(self._seed, f"line {entry.line}"), rest)
        codes: Codes = np.concatenate([*shared, own])[:length]
        return codes
