"""Build a workload from its settings; the same settings give the same requests, to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from trtllm_hpc.bench.workload.dataset import (
    OUTPUT_LENGTH_KEYS,
    DatasetEntry,
    counted,
    read_entries,
    request_of,
    too_long_note,
    turns_of,
)
from trtllm_hpc.bench.workload.prompt_source import (
    Codes,
    Drawn,
    draw_codes,
    draw_lengths,
    generated_requests,
    random_order,
    random_source,
)
from trtllm_hpc.bench.workload.request import (
    BuiltWorkload,
    WorkloadRequest,
    WorkloadSpec,
    file_error,
    settings_error,
)
from trtllm_hpc.config.benchmark import Benchmark, Workload

BUILT_IN_PROMPTS = (
    "What is machine learning?",
    "Name three rivers of Europe.",
    "Translate to French: good morning.",
    "Explain in one paragraph why the sky is blue.",
    "Write a short poem about a ship that comes home after a long winter.",
    "List the steps to make tea, and say which of them matters most for the taste.",
    "A train leaves at noon at 80 kilometres an hour. How far has it come at half past two?",
    "Summarise in two sentences what an operating system does for the programs that it runs.",
)
BLOCK_TOKENS = 512
"""Tokens for which one of Mooncake's ``hash_ids`` stands (FAST25-release/traces of kvcache-ai/Mooncake)."""
_CACHED_BLOCKS = 4096
_INPUT_LENGTH_KEYS = ("input_length", "input_tokens")
_TIME_KEYS = ("due_s", "timestamp")
"""Key of a time in seconds, and of one in milliseconds."""
_DIGITS = 9

_Turns = list[tuple[WorkloadRequest, Codes | None]]
"""The turns of a conversation, with codes for prompts that are generated later."""


def make_workload(spec: WorkloadSpec) -> BuiltWorkload:
    """Return the first ``spec.count`` requests or conversations of the workload; fewer if a trace is short.

    A longer workload of the same settings begins with the same requests. Raises ConfigError, with file and
    line, if the workload's file or settings give no requests.
    """
    kind = spec.settings.workload.kind
    if kind == "conversations":
        return _conversations(spec)
    if kind == "trace":
        return _trace(spec)
    if kind in ("prompts", "dataset"):
        return _given(spec)
    prefix_tokens = spec.settings.workload.prefix_tokens if kind == "shared-prefix" else 0
    lengths, cut = draw_lengths(spec, prefix_tokens)
    requests, notes = generated_requests(spec, _drawn_prompts(spec, lengths, prefix_tokens))
    return BuiltWorkload(requests, [*cut, *notes])


def check_file(workload: Workload) -> None:
    """Check the workload's file, if any, without tokenizer and engine, before a server starts.

    Raises ConfigError, with file and line, if the file gives no requests.
    """
    if workload.path is None:
        return
    spec = WorkloadSpec(Benchmark(workload=workload), 1, takes_token_ids=True)
    if workload.kind == "dataset":
        _prompts_of_file(spec)
    elif workload.kind == "conversations":
        for group in _groups(spec.file):
            _turns(group, spec)
    elif workload.kind == "trace":
        entries, has_prompts = _read_trace(spec)
        for entry in entries:
            if has_prompts:
                _recorded(entry, spec)
            else:
                _input_length(entry)
                _hash_ids(entry)
                entry.length(OUTPUT_LENGTH_KEYS)


# Generated and given prompts ------------------------------------------------------------------------


def _drawn_prompts(
    spec: WorkloadSpec, lengths: Sequence[tuple[int, int]], prefix_tokens: int
) -> Iterator[Drawn]:
    """Yield prompts of random lengths; with ``shared-prefix`` they begin with the prefixes in rotation."""
    seed = spec.settings.seed
    own, of_prefixes = random_source(seed, "prompts"), random_source(seed, "prefixes")
    count = min(spec.settings.workload.prefixes, len(lengths)) if prefix_tokens else 0
    prefixes = [draw_codes(of_prefixes, prefix_tokens) for _ in range(count)]
    for place, (tokens, answer) in enumerate(lengths):
        codes, source = draw_codes(own, tokens), None
        if prefixes:
            codes = np.concatenate([prefixes[place % count], codes])
            source = f"prefix {place % count + 1}"
        yield WorkloadRequest(answer, source=source), codes


def _given(spec: WorkloadSpec) -> BuiltWorkload:
    """Return prompts of the file, the settings or the toolkit in random order, repeated when all are used."""
    found: Sequence[WorkloadRequest | None]
    if spec.settings.workload.kind == "dataset":
        found = _prompts_of_file(spec)
    else:
        numbered = enumerate(spec.settings.workload.prompts or BUILT_IN_PROMPTS, 1)
        found = [
            WorkloadRequest(spec.settings.max_tokens, text, source=f"prompt {at}") for at, text in numbered
        ]
    prompts = [prompt for prompt in found if prompt is not None]
    order = random_order(len(prompts), spec.settings.seed)
    requests, notes = counted(spec, (prompts[place] for place in order))
    empty = len(found) - len(prompts)
    note = [f"Left out {empty:,} of {len(found):,} entries: they have no prompt."] if empty else []
    return BuiltWorkload(requests, note + notes, len(prompts))


def _prompts_of_file(spec: WorkloadSpec) -> list[WorkloadRequest | None]:
    """Return the prompt of each entry, or ``None``. Raises ConfigError if no entry has a prompt."""
    found = [request_of(entry, spec) for entry in read_entries(spec.file)]
    if not any(found):
        raise file_error(spec.file, None, "all prompts are empty")
    return found


# Requests recorded with their times: Mooncake's layout, or the workload file of an earlier measurement -----


def _trace(spec: WorkloadSpec) -> BuiltWorkload:
    """Return the first requests of the file in the order of their times, without repeats.

    Times are ``due_s`` in seconds or ``timestamp`` in milliseconds, divided by ``speed``. An entry without a
    prompt gets a generated prompt of its length, in which equal ``hash_ids`` stand for equal tokens.
    """
    entries, has_prompts = _read_trace(spec)
    if has_prompts:
        requests, notes = counted(spec, (_recorded(entry, spec) for entry in entries))
    else:
        requests, notes = _of_lengths(spec, entries)
    if spec.settings.requests is not None:
        wanted = min(spec.settings.requests + (spec.settings.warmup_requests or 0), spec.count)
        if len(requests) < wanted:
            notes.append(f"The trace has only {len(requests):,} requests instead of {wanted:,}.")
    return BuiltWorkload(requests, notes, len(entries))


def _read_trace(spec: WorkloadSpec) -> tuple[list[DatasetEntry], bool]:
    """Return the entries in the order of their times, and whether they have prompts or only lengths."""
    entries = [
        entry
        for [entry] in _timed([[entry] for entry in read_entries(spec.file)], spec.settings.workload.speed)
    ]
    return entries, _has_prompt(entries[0])


def _timed(groups: Sequence[Sequence[DatasetEntry]], speed: float) -> list[list[DatasetEntry]]:
    """Return the groups in the order of their first entries' times, which must not be missing."""
    begins = []
    for first, *_ in groups:
        begin_s = first.seconds(*_TIME_KEYS)
        if begin_s is None:
            message = "has no time: expected due_s in seconds, or timestamp in milliseconds"
            raise first.error(message, hint="use workload.kind dataset for a file without times")
        begins.append(begin_s)
    first_s = min(begins)

    def with_time(entry: DatasetEntry) -> DatasetEntry:
        time_s = entry.seconds(*_TIME_KEYS)
        return entry if time_s is None else entry._replace(due_s=round((time_s - first_s) / speed, _DIGITS))

    found = [[with_time(entry) for entry in group] for group in groups]
    return sorted(found, key=lambda group: group[0].due_s or 0.0)


def _has_prompt(entry: DatasetEntry) -> bool:
    """Return whether the entry has a prompt and not only a length."""
    has_length = any(key in entry.values for key in _INPUT_LENGTH_KEYS)
    return not has_length or "prompt" in entry.values or "token_ids" in entry.values


def _recorded(entry: DatasetEntry, spec: WorkloadSpec) -> WorkloadRequest:
    request = request_of(entry, spec)
    if request is None:
        raise entry.error("the prompt is empty")
    return request


def _of_lengths(
    spec: WorkloadSpec, entries: Sequence[DatasetEntry]
) -> tuple[list[WorkloadRequest], list[str]]:
    """Return the requests of entries that have only lengths."""
    seed, drawn, too_long = spec.settings.seed, list[Drawn](), 0

    @lru_cache(_CACHED_BLOCKS)
    def block(number: int) -> Codes:
        return draw_codes(random_source(seed, f"block {number}"), BLOCK_TOKENS)

    for entry in entries:
        if len(drawn) == spec.count:
            break
        length = _input_length(entry)
        if spec.limit is not None and length > spec.limit:
            too_long += 1
            continue
        shared = [block(number) for number in _hash_ids(entry)[: -(-length // BLOCK_TOKENS)]]
        own = draw_codes(random_source(seed, entry.source), max(0, length - BLOCK_TOKENS * len(shared)))
        drawn.append((_without_prompt(entry, spec), np.concatenate([*shared, own])[:length]))
    if not drawn:
        raise spec.all_too_long()
    requests, notes = generated_requests(spec, drawn)
    if too_long:
        notes = [too_long_note(too_long, too_long + len(drawn), "requests", spec.limit), *notes]
    return requests, notes


def _without_prompt(entry: DatasetEntry, spec: WorkloadSpec) -> WorkloadRequest:
    """Return the request of an entry with lengths only; its prompt is generated later."""
    tokens = entry.length(OUTPUT_LENGTH_KEYS) or spec.settings.max_tokens
    return WorkloadRequest(tokens, due_s=entry.due_s, source=entry.source)


def _input_length(entry: DatasetEntry) -> int:
    """Return the length of the prompt in tokens. Raises ConfigError if the entry lacks it."""
    length = entry.length(_INPUT_LENGTH_KEYS)
    if length is None:
        raise entry.error(f"{_INPUT_LENGTH_KEYS[0]} must be a whole number of at least 1")
    return length


def _hash_ids(entry: DatasetEntry) -> list[int]:
    """Return the numbers of the blocks at the beginning of the prompt."""
    hashes = entry.values.get("hash_ids") or []
    if not isinstance(hashes, list) or not all(type(number) is int for number in hashes):
        raise entry.error(f"hash_ids must be a list of whole numbers; found {hashes!r}")
    return hashes


# Conversations: what the user says in each turn. Earlier messages join it when it is sent, with the answers
# of the server (:mod:`trtllm_hpc.bench.load.turns`).


def _conversations(spec: WorkloadSpec) -> BuiltWorkload:
    """Return the turns of the first ``spec.count`` conversations, generated or from a file.

    A file's conversations are repeated in another order when all are used, unless they have times. Raises
    ConfigError if there are none.
    """
    if spec.takes_token_ids:
        message = "conversations are text, but the model accepts token IDs only"
        raise settings_error("kind", message, hint="--model ensemble, or --protocol openai-chat")
    distinct = None
    if spec.settings.workload.path is None:
        all_turns, notes = _drawn_turns(spec)
    else:
        settings, groups = spec.settings, _groups(spec.file)
        order, distinct = random_order(len(groups), settings.seed), len(groups)
        if settings.arrival == "trace" and not settings.closed_loop:
            groups, order = _timed(groups, spec.settings.workload.speed), iter(range(len(groups)))
        all_turns, notes = [_turns(groups[place], spec) for place in islice(order, spec.count)], []
    drawn = [(request, codes) for turns in all_turns for request, codes in turns if codes is not None]
    made, more = generated_requests(spec, drawn) if drawn else ([], [])
    texts, requests = (request.prompt for request in made), list[WorkloadRequest]()
    thinks = _draws(
        spec, "think times", spec.settings.workload.think_seconds, spec.settings.workload.think_seconds_stdev
    )
    for number, turns in enumerate(all_turns):
        for turn, (request, codes) in enumerate(turns, 1):
            usual_s = 0.0 if request.due_s is not None else round(max(0.0, next(thinks)), 9)
            think_s = usual_s if request.think_s is None else request.think_s
            text = request.prompt if codes is None else next(texts)
            said = replace(request, prompt=text, session=f"{spec.settings.seed}-{number}", turn=turn)
            known = replace(said, think_s=None) if turn == 1 else replace(said, think_s=think_s, said=None)
            requests.append(known)
    return BuiltWorkload(requests, [*notes, *more], distinct)


def _draws(spec: WorkloadSpec, name: str, mean: float, stdev: float) -> Iterator[float]:
    source = random_source(spec.settings.seed, name)
    while True:
        yield mean + stdev * float(source.standard_normal())


def _drawn_turns(spec: WorkloadSpec) -> tuple[list[_Turns], list[str]]:
    workload, seed = spec.settings.workload, spec.settings.seed
    draws = islice(_draws(spec, "turns", workload.turns, workload.turns_stdev), spec.count)
    counts = [max(1, round(drawn)) for drawn in draws]
    lengths, notes = draw_lengths(replace(spec, count=sum(counts)), workload.prefix_tokens)
    source = random_source(seed, "prefixes")
    prefixes = [
        (WorkloadRequest(1), draw_codes(source, workload.prefix_tokens))
        for _ in range(min(workload.prefixes, spec.count))
    ]
    systems, more = generated_requests(spec, prefixes)
    own, remaining, all_turns = random_source(seed, "prompts"), iter(lengths), list[_Turns]()
    for count, system in zip(counts, cycle(systems), strict=False):
        said = [{"role": "system", "content": system.prompt or ""}]
        turns = islice(remaining, count)
        all_turns.append(
            [(WorkloadRequest(out, said=said), draw_codes(own, tokens)) for tokens, out in turns]
        )
    return all_turns, [*notes, *more]


def _groups(path: Path) -> list[list[DatasetEntry]]:
    """Return the entries of each conversation: the turns of one entry, or entries with one ``session_id``."""
    groups: dict[object, list[DatasetEntry]] = {}
    for place, entry in enumerate(read_entries(path)):
        key = entry.values.get("session_id", entry.values.get("session"))
        groups.setdefault((place,) if key is None else str(key), []).extend(turns_of(entry))
    found = [group for group in groups.values() if group]
    if not found:
        raise file_error(path, None, "all conversations are empty")
    return found


def _turns(group: Sequence[DatasetEntry], spec: WorkloadSpec) -> _Turns:
    turns = _Turns()
    for entry in group:
        think_s = entry.seconds("think_s", "delay")
        codes = None
        if _has_prompt(entry):
            found = request_of(entry, spec)
            if found is None or found.prompt is None:
                raise entry.error("has no text to say")
        else:
            found = _without_prompt(entry, spec)
            codes = draw_codes(random_source(spec.settings.seed, entry.source), _input_length(entry))
        think_s = think_s and max(0.0, think_s) / spec.settings.workload.speed
        turns.append((replace(found, think_s=think_s, said=entry.values.get("said")), codes))
    return turns
