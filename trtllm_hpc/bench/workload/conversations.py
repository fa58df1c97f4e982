"""Conversations, drawn or from a file: what the user says in each turn.

Earlier messages join it when it is sent, with the server's answers (:mod:`trtllm_hpc.bench.load.turns`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from trtllm_hpc.bench.workload import trace
from trtllm_hpc.bench.workload.dataset import (
    OUTPUT_LENGTH_KEYS,
    DatasetEntry,
    read_entries,
    request_of,
    turns_of,
)
from trtllm_hpc.bench.workload.prompt_source import (
    PromptShape,
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

_Turns = list[tuple[WorkloadRequest, PromptShape | None]]
"""The turns of a conversation; a shape stands for a prompt that is still to be written."""


def conversations(spec: WorkloadSpec) -> BuiltWorkload:
    """Return the turns of the first ``spec.count`` conversations; raises ConfigError if there are none.

    A file's conversations are repeated in another order when all were taken, unless they have times.
    """
    if spec.takes_token_ids:
        message = "the turns of a conversation are texts, and the model takes token ids"
        raise settings_error("kind", message, hint="--model ensemble, or --protocol openai-chat")
    all_turns, notes, distinct = _drawn(spec) if spec.workload.path is None else _of_file(spec)
    shapes = [shape for turns in all_turns for _, shape in turns if shape is not None]
    made, more = generated_requests(spec, shapes) if shapes else ([], [])
    texts, requests = iter(made), list[WorkloadRequest]()
    thinks = _draws(spec, "think times", spec.workload.think_seconds, spec.workload.think_seconds_stdev)
    for number, turns in enumerate(all_turns):
        for turn, (request, shape) in enumerate(turns, 1):
            usual_s = 0.0 if request.due_s is not None else round(max(0.0, next(thinks)), 9)
            think_s = usual_s if request.think_s is None else request.think_s
            text = request.prompt if shape is None else next(texts).prompt
            said = replace(request, prompt=text, session=f"{spec.settings.seed}-{number}", turn=turn)
            known = replace(said, think_s=None) if turn == 1 else replace(said, think_s=think_s, said=None)
            requests.append(known)
    return BuiltWorkload(requests, [*notes, *more], distinct)


def check_conversations(spec: WorkloadSpec) -> None:
    """Check every conversation of the file without a tokenizer. Raises ConfigError; with file and line."""
    for group in _groups(spec.file):
        _turns(group, spec)


def _draws(spec: WorkloadSpec, name: str, mean: float, stdev: float) -> Iterator[float]:
    source = random_source(spec.settings.seed, name)
    while True:
        yield mean + stdev * float(source.standard_normal())


def _drawn(spec: WorkloadSpec) -> tuple[list[_Turns], list[str], None]:
    workload, seed = spec.workload, spec.settings.seed
    draws = islice(_draws(spec, "turns", workload.turns, workload.turns_stdev), spec.count)
    counts = [max(1, round(drawn)) for drawn in draws]
    lengths, notes = draw_lengths(replace(spec, count=sum(counts)), workload.prefix_tokens)
    source = random_source(seed, "prefixes")
    prefixes = [
        PromptShape(draw_codes(source, workload.prefix_tokens), 1)
        for _ in range(min(workload.prefixes, spec.count))
    ]
    systems, more = generated_requests(spec, prefixes)
    source = random_source(seed, "prompts")
    shapes = (PromptShape(draw_codes(source, tokens), answer) for tokens, answer in lengths)
    all_turns = list[_Turns]()
    for count, system in zip(counts, cycle(systems), strict=False):
        said = [{"role": "system", "content": system.prompt or ""}]
        turns = [(WorkloadRequest(shape.max_tokens, said=said), shape) for shape in islice(shapes, count)]
        all_turns.append([*turns])
    return all_turns, [*notes, *more], None


def _of_file(spec: WorkloadSpec) -> tuple[list[_Turns], list[str], int]:
    settings, groups = spec.settings, _groups(spec.file)
    order = random_order(len(groups), settings.seed)
    if settings.arrival == "trace" and not settings.closed_loop:
        groups, order = trace.timed(groups, spec.workload.speed), iter(range(len(groups)))
    chosen = (groups[place] for place in islice(order, spec.count))
    return [_turns(group, spec) for group in chosen], [], len(groups)


def _groups(path: Path) -> list[list[DatasetEntry]]:
    """Return the entries of each conversation: whole ones, or those with the same ``session_id``."""
    groups: dict[object, list[DatasetEntry]] = {}
    for place, entry in enumerate(read_entries(path)):
        key = entry.values.get("session_id", entry.values.get("session"))
        groups.setdefault((place,) if key is None else str(key), []).extend(turns_of(entry))
    found = [group for group in groups.values() if group]
    if not found:
        raise file_error(path, None, "nothing is said in any conversation")
    return found


def _turns(group: Sequence[DatasetEntry], spec: WorkloadSpec) -> _Turns:
    turns = _Turns()
    for entry in group:
        think_s = entry.seconds("think_s", "delay")
        recorded: dict[str, Any] = {
            "think_s": think_s and max(0.0, think_s) / spec.workload.speed,
            "said": entry.values.get("said"),
        }
        if not trace.has_prompt(entry):
            answer = entry.length(OUTPUT_LENGTH_KEYS) or spec.settings.max_tokens
            codes = draw_codes(random_source(spec.settings.seed, entry.source), trace.input_length(entry))
            request = WorkloadRequest(answer, due_s=entry.due_s, source=entry.source, **recorded)
            turns.append((request, PromptShape(codes, answer)))
            continue
        found = request_of(entry, spec)
        if found is None or found.prompt is None:
            raise entry.error("has no text to say")
        turns.append((replace(found, **recorded), None))
    return turns
