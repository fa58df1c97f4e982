"""transformers' own continuous batching, in this process; mode ``graphs`` asks for CUDA graphs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.reference.library import load_model
from benchmarks.reference.workload import (
    ANSWER_LIMIT_S,
    BenchmarkFailed,
    Measure,
    Outcome,
    Run,
    Setup,
    closed_loop,
    prompt,
)

BLOCK_TOKENS = 32
SPARE = 1.25
"""The scheduler holds new prompts back while less than 15 % of the blocks are free."""


@contextmanager
def contend(setup: Setup, mode: str) -> Iterator[Measure]:
    """Start the manager's thread."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = load_model(setup, "paged|sdpa")
    blocks = -(-(setup.prompt_tokens + setup.new_tokens) // BLOCK_TOKENS) + 1
    graphs = {"use_cuda_graph": True, "use_async_batching": False} if mode == "graphs" else {}
    # Its own choice of sizes takes gigabytes on CPUs and all memory of a GPU that others use too.
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(
            do_sample=False, max_new_tokens=setup.new_tokens, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            block_size=BLOCK_TOKENS,
            num_blocks=int(blocks * setup.most * SPARE) + 1,
            max_batch_tokens=max(setup.most * setup.prompt_tokens, 64),
            max_requests_per_batch=setup.most,
            # The rounds repeat their prompts, and all contenders shall read them anew.
            allow_block_sharing=False,
            **graphs,
        ),
    )
    manager.start()
    try:
        yield lambda run: _measure(setup, manager, run)
    finally:
        manager.stop(block=True, timeout=ANSWER_LIMIT_S)


def _measure(setup: Setup, manager: Any, run: Run) -> Outcome:
    prompts = [prompt(setup, index) for index in range(run.requests)]

    def send(index: int) -> None:
        manager.add_request(prompts[index], request_id=str(index), max_new_tokens=setup.new_tokens)

    seconds, cpu, tokens = closed_loop(run, send, lambda: _receive(manager))
    return Outcome(seconds, tokens, cpu)


def _receive(manager: Any) -> tuple[int, Any]:
    deadline = time.monotonic() + ANSWER_LIMIT_S
    while time.monotonic() < deadline:
        result = manager.get_result(timeout=1)
        if result is not None and result.error is not None:
            raise BenchmarkFailed(result.error)
        if result is not None and result.is_finished():
            return int(result.request_id), list(result.generated_tokens)
        if not manager.is_running():
            raise BenchmarkFailed("the thread of continuous batching has ended")
    raise BenchmarkFailed(f"no answer in {ANSWER_LIMIT_S:.0f} s")
