"""The executor alone: who decodes in which slot is written down by the test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from transformers import GenerationConfig

from trtllm_hpc.reference import synthetic
from trtllm_hpc.reference.attention import PagedCache, layer_shapes
from trtllm_hpc.reference.executor import Executor
from trtllm_hpc.reference.generation import GenerationRequest, Progress
from trtllm_hpc.reference.lora import Adapters
from trtllm_hpc.reference.scheduler import Admission, Step

BLOCK = 8
SLOTS = 4
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def random_model() -> Any:
    model = synthetic.make_model(seed=0, dtype="float32", max_seq_len=128).eval().to(DEVICE)
    # As a server has it: nothing that a request leaves open is filled in by the model.
    model.generation_config = GenerationConfig()
    return model


@dataclass
class Bench:
    """An executor and who has which of its blocks."""

    executor: Executor
    blocks: Iterator[int]

    def admission(self, slot: int, request: GenerationRequest) -> Admission:
        each = -(-request.total_tokens // BLOCK)
        rows = tuple(tuple(next(self.blocks) for _ in range(each)) for _ in range(request.beam_width))
        return Admission(slot, rows, request)

    def finish(self, slots: Sequence[int]) -> dict[int, Progress]:
        """Advance searches in turn until all have ended."""
        found: dict[int, Progress] = {}
        while left := tuple(slot for slot in slots if slot not in found):
            found |= self.executor.run(Step(beams=left)).beams
        return found

    def search(self, request: GenerationRequest) -> Progress:
        self.executor.run(Step(admitted=(self.admission(0, request),)))
        return self.finish([0])[0]


def new_bench(model: Any, adapters: Adapters | None = None) -> Bench:
    """With a model that is prepared; its cache is empty."""
    # Tests run beside each other, and threads that wait for a core make a small model many times slower.
    torch.set_num_threads(1)
    cache = PagedCache(model, layer_shapes(model), blocks=120, tokens_per_block=BLOCK)
    runner = Executor(model, cache, slots=SLOTS, blocks_per_sequence=16, adapters=adapters)
    # Blocks in falling order, so that nothing depends on blocks that follow each other.
    return Bench(runner, count(120, -1))
