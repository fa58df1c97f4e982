"""transformers' plain ``generate`` on static batches.

Mode ``static`` uses a cache of fixed size, with which transformers compiles
the decode step on GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.reference.library import load_model
from benchmarks.reference.workload import Answer, Measure, Outcome, Run, Setup, prompt


@contextmanager
def contend(setup: Setup, mode: str) -> Iterator[Measure]:
    """Load the model."""
    model = load_model(setup, "sdpa")
    options = {"cache_implementation": "static"} if mode == "static" else {}
    compiled_for = 0

    def measure(run: Run) -> Outcome:
        nonlocal compiled_for
        if options and run.concurrency != compiled_for:
            _forget_compiled()
            compiled_for = run.concurrency
        return _measure(setup, model, options, run)

    yield measure


def _forget_compiled() -> None:
    """Reset the compiler: otherwise a new batch size is compiled with dynamic shapes, which is slower."""
    import torch

    torch.compiler.reset()


def _measure(setup: Setup, model: Any, options: dict[str, str], run: Run) -> Outcome:
    import torch

    prompts = [prompt(setup, index) for index in range(run.requests)]
    answers: list[Answer] = []
    cpu, started = time.process_time(), time.perf_counter()
    for first in range(0, run.requests, run.concurrency):
        batch = torch.tensor(prompts[first : first + run.concurrency], device=model.device)
        tokens = model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=False,
            max_new_tokens=setup.new_tokens,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        answers += tokens[:, setup.prompt_tokens :].tolist()
    return Outcome(time.perf_counter() - started, answers, time.process_time() - cpu)
