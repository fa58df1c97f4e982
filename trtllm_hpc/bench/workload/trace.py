"""Requests recorded with their times: Mooncake's layout, or a file that a measurement left behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from trtllm_hpc.bench.workload.asking import Asking
from trtllm_hpc.bench.workload.draws import Stream, draws
from trtllm_hpc.bench.workload.entries import Entry, read_entries
from trtllm_hpc.bench.workload.fields import OUTPUT_LENGTHS, Question, length_of, question_of
from trtllm_hpc.bench.workload.material import material
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.bench.workload.shape import Codes, Shape, draw_codes
from trtllm_hpc.bench.workload.wanted import Built, Wanted, misread, refused, some

BLOCK_TOKENS = 512
"""Tokens that one of Mooncake's ``hash_ids`` stands for (FAST25-release/traces of kvcache-ai/Mooncake)."""

_INPUT_LENGTHS = ("input_length", "input_tokens")
_DIGITS = 9
_BLOCKS_AT_HAND = 4096


@dataclass(frozen=True)
class Timed:
    """An entry, and when it is due in seconds after the first one."""

    due_s: float
    entry: Entry


def trace(wanted: Wanted) -> Built:
    """The first requests of the file, in the order of their times, and never again from the start.

    Times are ``due_s`` in seconds or ``timestamp`` in milliseconds; they run
    ``speed`` times faster. An entry without a prompt has one made for its
    length, where the same ``hash_ids`` stand for the same tokens.
    """
    path = wanted.file
    timed, made = _read(path, wanted.workload.speed)
    requests, notes = (_synthetic if made else _recorded)(wanted, path, timed)
    if wanted.settings.requests is not None:
        asked = min(wanted.settings.requests + (wanted.settings.warmup_requests or 0), wanted.count)
        if len(requests) < asked:
            notes.append(f"The trace has only {len(requests):,} of the {asked:,} requests asked for.")
    return Built(requests, [*notes, *_too_short(wanted, timed)], len(timed))


def _too_short(wanted: Wanted, timed: Sequence[Timed]) -> Iterator[str]:
    """A sentence if the trace ends before the time that was asked for; a closed loop has times of its own."""
    settings, length_s = wanted.settings, timed[-1].due_s
    if settings.duration_seconds is None or settings.arrival != "trace" or settings.closed_loop:
        return
    asked_s = (settings.warmup_seconds or 0.0) + settings.duration_seconds
    if length_s + length_s / max(1, len(timed) - 1) < asked_s:
        yield f"The trace ends after {length_s:g} of the {asked_s:g} s asked for, and the window with it."


def check_trace(path: Path, tokens_per_word: float) -> None:
    """Read every entry of the file, as far as that can be done without a tokenizer.

    Raises:
        ConfigError: an entry cannot be asked; with file and line.
    """
    timed, made = _read(path, 1.0)
    for each in timed:
        if made:
            _input_length(path, each.entry)
            _hashes(path, each.entry)
            length_of(path, each.entry, OUTPUT_LENGTHS)
        else:
            _question(path, each, tokens_per_word)


def _read(path: Path, speed: float) -> tuple[list[Timed], bool]:
    """The entries in the order of their times, and whether prompts must be made for their lengths."""
    timed = _timed(path, read_entries(path), speed)
    made = [_has_lengths_alone(each.entry) for each in timed]
    if any(made) and not all(made):
        line = timed[made.index(not made[0])].entry.line
        raise misread(path, line, "is of another layout than the entries before: prompts, or lengths alone")
    return timed, made[0]


def _timed(path: Path, entries: Sequence[Entry], speed: float) -> list[Timed]:
    times = [_time(path, entry) for entry in entries]
    first = min(times)
    timed = [
        Timed(round((time - first) / speed, _DIGITS), entry)
        for time, entry in zip(times, entries, strict=True)
    ]
    return sorted(timed, key=lambda each: each.due_s)


def _time(path: Path, entry: Entry) -> float:
    """In seconds, from any zero."""
    for key, unit_s in (("due_s", 1.0), ("timestamp", 0.001)):
        value = entry.values.get(key)
        if value is None:
            continue
        if type(value) not in (int, float) or not abs(value) < 1e15:
            raise misread(path, entry.line, f"{key} must be a number; found {value!r}")
        return float(value) * unit_s
    message = "has no time: expected due_s in seconds, or timestamp in milliseconds"
    raise misread(path, entry.line, message, hint="take workload.kind dataset for a file without times")


def _has_lengths_alone(entry: Entry) -> bool:
    return any(key in entry.values for key in _INPUT_LENGTHS) and not any(
        key in entry.values for key in ("prompt", "token_ids")
    )


def _recorded(wanted: Wanted, path: Path, timed: Sequence[Timed]) -> tuple[list[Request], list[str]]:
    """Requests of entries that hold prompts or ids."""
    asking = Asking(wanted, path)
    requests: list[Request] = []
    begun = 0
    while begun < len(timed) and len(requests) < wanted.count:
        batch = timed[begun : begun + wanted.count - len(requests)]
        begun += len(batch)
        questions = [_question(path, each, wanted.workload.tokens_per_word) for each in batch]
        requests += [request for request in asking.requests(questions) if request is not None]
    if not requests:
        raise asking.nothing_left()
    return requests, asking.notes()


def _question(path: Path, timed: Timed, tokens_per_word: float) -> Question:
    question = question_of(path, timed.entry, tokens_per_word)
    if question is None:
        raise misread(path, timed.entry.line, "asks nothing: the prompt is empty")
    return replace(question, due_s=timed.due_s)


def _synthetic(wanted: Wanted, path: Path, timed: Sequence[Timed]) -> tuple[list[Request], list[str]]:
    """Requests of entries that hold lengths."""
    kept: list[tuple[Timed, int]] = []
    too_long = 0
    for each in timed:
        if len(kept) == wanted.count:
            break
        length = _input_length(path, each.entry)
        if wanted.limit is not None and length > wanted.limit:
            too_long += 1
        else:
            kept.append((each, length))
    if not kept:
        message = f"every prompt of the trace is longer than {wanted.limit} tokens"
        raise refused("max_input_tokens", message, code="too-long", hint="take another file, or allow more")
    made = material(wanted)
    requests = list(made.requests(_shapes(wanted, path, kept)))
    many = f"{too_long:,} of {some(too_long + len(kept), 'request')}"
    notes = [f"{many} left out: longer than {wanted.limit} tokens."] if too_long else []
    return requests, [*notes, *made.notes()]


def _input_length(path: Path, entry: Entry) -> int:
    length = length_of(path, entry, _INPUT_LENGTHS)
    if length is None:
        raise misread(path, entry.line, f"{_INPUT_LENGTHS[0]} must be a whole number from 1 on")
    return length


def _hashes(path: Path, entry: Entry) -> list[int]:
    hashes = entry.values.get("hash_ids") or []
    if not isinstance(hashes, list) or not all(type(number) is int for number in hashes):
        raise misread(path, entry.line, f"hash_ids must be a list of whole numbers; found {hashes!r}")
    return hashes


def _shapes(wanted: Wanted, path: Path, kept: Sequence[tuple[Timed, int]]) -> Iterator[Shape]:
    seed = wanted.settings.seed
    block = lru_cache(_BLOCKS_AT_HAND)(lambda number: _block(seed, number))
    for each, length in kept:
        known = [block(number) for number in _hashes(path, each.entry)[: -(-length // BLOCK_TOKENS)]]
        rest = max(0, length - BLOCK_TOKENS * len(known))
        own = draw_codes(draws(seed, Stream.CONTENTS, each.entry.line), rest)
        codes = np.concatenate([*known, own])[:length]
        tokens = length_of(path, each.entry, OUTPUT_LENGTHS) or wanted.settings.max_tokens
        yield Shape(codes, tokens, each.due_s, f"line {each.entry.line}")


def _block(seed: int, number: int) -> Codes:
    """The codes of one hash, wherever and whenever it comes."""
    return draw_codes(draws(seed, Stream.BLOCKS, number), BLOCK_TOKENS)
