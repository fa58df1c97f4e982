"""Build a workload from its settings: the same settings give the same requests, to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, cycle
from pathlib import Path

import numpy as np

from trtllm_hpc.bench.workload.conversations import check_conversations, conversations
from trtllm_hpc.bench.workload.dataset import SourcePrompt, read_prompts
from trtllm_hpc.bench.workload.lengths import Lengths, draw_lengths
from trtllm_hpc.bench.workload.prompt_source import PromptShape, generated_requests
from trtllm_hpc.bench.workload.random_numbers import draw_codes, random_source
from trtllm_hpc.bench.workload.request import BuiltWorkload, WorkloadSpec
from trtllm_hpc.bench.workload.request_builder import RequestBuilder
from trtllm_hpc.bench.workload.trace import check_trace, trace
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

_BLOCK = 12
"""Requests in which each adapter has its share, give or take one; halves, thirds and quarters exactly."""


def make_workload(spec: WorkloadSpec) -> BuiltWorkload:
    """Return the first ``spec.count`` requests or conversations of the workload; fewer if a trace is short.

    A longer workload of the same settings begins with the same requests. Raises ConfigError if the workload's
    file or its settings make no requests; with file and line.
    """
    kind = spec.workload.kind
    if kind == "conversations":
        return conversations(spec)
    build = trace if kind == "trace" else _given if kind in ("prompts", "dataset") else _generated
    built = build(spec)
    if not spec.workload.lora:
        return built
    drawn = zip(built.requests, _adapters(spec.settings), strict=False)
    return replace(built, requests=[replace(request, lora_task_id=task_id) for request, task_id in drawn])


def check_file(workload: Workload) -> None:
    """Check the workload's file, if it has one, without tokenizer and engine: before a server is started.

    Raises ConfigError if it makes no requests; with file and line.
    """
    if workload.path is None:
        return
    path = Path(workload.path)
    if workload.kind == "dataset":
        read_prompts(path, workload.tokens_per_word)
    elif workload.kind == "trace":
        check_trace(path, workload.tokens_per_word)
    elif workload.kind == "conversations":
        check_conversations(path, workload)


def _given(spec: WorkloadSpec) -> BuiltWorkload:
    """The prompts of the file, the given or the built-in ones, in random order.

    In a file, an answer's limit is that of the entry or, if the entry has an answer
    instead, the words of the answer times ``tokens_per_word``.
    """
    found: Sequence[SourcePrompt | None]
    if spec.workload.kind == "dataset":
        found = read_prompts(spec.file, spec.workload.tokens_per_word)
    else:
        given = spec.workload.prompts or BUILT_IN_PROMPTS
        found = [SourcePrompt(number, f"prompt {number}", prompt) for number, prompt in enumerate(given, 1)]
    prompts = [prompt for prompt in found if prompt is not None]
    builder = RequestBuilder(spec)
    requests = builder.in_random_order(prompts)
    empty = len(found) - len(prompts)
    note = [f"Left out {empty:,} of {len(found):,} entries: they have no prompt."] if empty else []
    return BuiltWorkload(requests, note + builder.notes(), len(prompts))


def _generated(spec: WorkloadSpec) -> BuiltWorkload:
    """Prompts of drawn lengths. Those of ``shared-prefix`` begin with one of a few prefixes, in turn."""
    prefix_tokens = spec.workload.prefix_tokens if spec.workload.kind == "shared-prefix" else 0
    lengths, cut = draw_lengths(spec, prefix_tokens)
    requests, notes = generated_requests(spec, _shapes(spec, lengths, prefix_tokens))
    return BuiltWorkload(requests, [*cut, *notes])


def _shapes(spec: WorkloadSpec, lengths: Sequence[Lengths], prefix_tokens: int) -> Iterator[PromptShape]:
    seed = spec.settings.seed
    source = random_source(seed, "prompts")
    if not prefix_tokens:
        for each in lengths:
            yield PromptShape(draw_codes(source, each.input_tokens), each.output_tokens)
        return
    count = min(spec.workload.prefixes, len(lengths))
    of_prefixes = random_source(seed, "prefixes")
    prefixes = [draw_codes(of_prefixes, prefix_tokens) for _ in range(count)]
    for each, (number, prefix) in zip(lengths, cycle(enumerate(prefixes, 1)), strict=False):
        codes = np.concatenate([prefix, draw_codes(source, each.input_tokens)])
        yield PromptShape(codes, each.output_tokens, None, f"prefix {number}", number, prefix_tokens)


def _adapters(settings: Benchmark) -> Iterator[int | None]:
    """Yield the adapter of one request after the other, ``None`` for none, without end.

    Within a block the points of a grid with a random start are in random order (systematic sampling): short
    measurements have the shares, too, and the adapters do not take turns in step with the instances of a
    server.
    """
    workload = settings.workload
    task_ids: list[int | None] = [*workload.lora_task_ids, None]
    # Rounded, so that a sum of thirds is no hair below 1.
    bounds = [round(bound, 9) for bound in accumulate(workload.lora_shares)]
    source = random_source(settings.seed, "adapters")
    while True:
        points = (source.permutation(_BLOCK) + source.random()) / _BLOCK
        for place in np.searchsorted(bounds, points, side="right").tolist():
            yield task_ids[place]
