"""Build a workload from its settings: the same settings give the same requests, to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trtllm_hpc.bench.workload.conversations import check_conversations, conversations
from trtllm_hpc.bench.workload.dataset import counted, read_prompts
from trtllm_hpc.bench.workload.prompt_source import (
    PromptShape,
    draw_codes,
    draw_lengths,
    generated_requests,
    random_order,
    random_source,
)
from trtllm_hpc.bench.workload.request import BuiltWorkload, WorkloadRequest, WorkloadSpec
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


def make_workload(spec: WorkloadSpec) -> BuiltWorkload:
    """Return the first ``spec.count`` requests or conversations of the workload; fewer if a trace is short.

    A longer workload of the same settings begins with the same requests. Raises ConfigError if the workload's
    file or its settings make no requests; with file and line.
    """
    kind = spec.workload.kind
    if kind == "conversations":
        return conversations(spec)
    if kind == "trace":
        return trace(spec)
    if kind in ("prompts", "dataset"):
        return _given(spec)
    prefix_tokens = spec.workload.prefix_tokens if kind == "shared-prefix" else 0
    lengths, cut = draw_lengths(spec, prefix_tokens)
    requests, notes = generated_requests(spec, _shapes(spec, lengths, prefix_tokens))
    return BuiltWorkload(requests, [*cut, *notes])


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
    found: Sequence[WorkloadRequest | None]
    if spec.workload.kind == "dataset":
        found = read_prompts(spec)
    else:
        given = enumerate(spec.workload.prompts or BUILT_IN_PROMPTS, 1)
        found = [WorkloadRequest(spec.settings.max_tokens, text, source=f"prompt {at}") for at, text in given]
    prompts = [prompt for prompt in found if prompt is not None]
    order = random_order(len(prompts), spec.settings.seed)
    requests, notes = counted(spec, (prompts[place] for place in order))
    empty = len(found) - len(prompts)
    note = [f"Left out {empty:,} of {len(found):,} entries: they have no prompt."] if empty else []
    return BuiltWorkload(requests, note + notes, len(prompts))


def _shapes(
    spec: WorkloadSpec, lengths: Sequence[tuple[int, int]], prefix_tokens: int
) -> Iterator[PromptShape]:
    """Yield prompts of drawn lengths; those of ``shared-prefix`` begin with one of the prefixes, in turn."""
    seed = spec.settings.seed
    own, of_prefixes = random_source(seed, "prompts"), random_source(seed, "prefixes")
    count = min(spec.workload.prefixes, len(lengths)) if prefix_tokens else 0
    prefixes = [draw_codes(of_prefixes, prefix_tokens) for _ in range(count)]
    for place, (tokens, answer) in enumerate(lengths):
        codes, source = draw_codes(own, tokens), None
        if prefixes:
            codes = np.concatenate([prefixes[place % count], codes])
            source = f"prefix {place % count + 1}"
        yield PromptShape(codes, answer, source=source)
