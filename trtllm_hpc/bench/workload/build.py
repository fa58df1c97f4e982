"""Build a workload from its settings: the same settings give the same requests, to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from trtllm_hpc.bench.workload.conversations import check_conversations, conversations
from trtllm_hpc.bench.workload.dataset import read_prompts
from trtllm_hpc.bench.workload.given_prompts import counted, random_order
from trtllm_hpc.bench.workload.lengths import draw_lengths
from trtllm_hpc.bench.workload.prompt_source import PromptShape, generated_requests
from trtllm_hpc.bench.workload.random_numbers import draw_codes, random_source
from trtllm_hpc.bench.workload.request import BuiltWorkload, Request, WorkloadSpec
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
    spec = WorkloadSpec(Benchmark(workload=workload), 1, takes_token_ids=True)
    checks = {"dataset": read_prompts, "trace": check_trace, "conversations": check_conversations}
    if check := checks.get(workload.kind):
        check(spec)


def _given(spec: WorkloadSpec) -> BuiltWorkload:
    """The prompts of the file, the given or the built-in ones, in random order, again when all were taken."""
    found: list[Request | None]
    if spec.workload.kind == "dataset":
        found = read_prompts(spec)
    else:
        given = enumerate(spec.workload.prompts or BUILT_IN_PROMPTS, 1)
        found = [Request(spec.settings.max_tokens, text, source=f"prompt {at}") for at, text in given]
    prompts = [prompt for prompt in found if prompt is not None]
    order = random_order(len(prompts), spec.settings.seed)
    requests, notes = counted(spec, (prompts[place] for place in order))
    empty = len(found) - len(prompts)
    note = [f"Left out {empty:,} of {len(found):,} entries: they have no prompt."] if empty else []
    return BuiltWorkload(requests, note + notes, len(prompts))


def _generated(spec: WorkloadSpec) -> BuiltWorkload:
    """Prompts of drawn lengths. Those of ``shared-prefix`` begin with one of a few prefixes, in turn."""
    prefix_tokens = spec.workload.prefix_tokens if spec.workload.kind == "shared-prefix" else 0
    lengths, cut = draw_lengths(spec, prefix_tokens)
    requests, notes = generated_requests(spec, _shapes(spec, lengths, prefix_tokens))
    return BuiltWorkload(requests, [*cut, *notes])


def _shapes(
    spec: WorkloadSpec, lengths: Sequence[tuple[int, int]], prefix_tokens: int
) -> Iterator[PromptShape]:
    seed = spec.settings.seed
    own, of_prefixes = random_source(seed, "prompts"), random_source(seed, "prefixes")
    count = min(spec.workload.prefixes, len(lengths)) if prefix_tokens else 0
    prefixes = [draw_codes(of_prefixes, prefix_tokens) for _ in range(count)]
    for place, (tokens, answer) in enumerate(lengths):
        shape = PromptShape(draw_codes(own, tokens), answer)
        if prefixes:
            prefix = place % count
            codes = np.concatenate([prefixes[prefix], shape.codes])
            shape = PromptShape(codes, answer, None, f"prefix {prefix + 1}", prefix + 1, prefix_tokens)
        yield shape


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
