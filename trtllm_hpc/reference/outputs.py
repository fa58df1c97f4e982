"""The tensors that answer one request to the ``tensorrt_llm`` model.

Names, types and shapes are those of ``fillTritonResponse`` in
``inflight_batcher_llm/src/model_instance_state.cc`` of NVIDIA's
tensorrtllm_backend v0.16.0.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from trtllm_hpc.reference.generation import Progress
from trtllm_hpc.reference.requests import Part

if TYPE_CHECKING:
    import torch

PADDING = -1
"""Fills the shorter beams, in tokens and log-probabilities; ``sequence_length`` tells where it begins."""


def output_tensors(part: Part, progress: Progress, wanted: Collection[str]) -> dict[str, torch.Tensor]:
    """Output tensors by name, those that are wanted.

    ``output_ids`` holds prompt and answer. It holds the new tokens alone if
    the request excludes its prompt, or wants each token as it comes.
    Log-probabilities that were not asked for are zeros.
    """
    import torch

    request = part.request
    beams = progress.tokens[: part.beams]
    kept = () if request.exclude_input or request.streaming else request.prompt
    tokens = [(*kept, *beam) for beam in beams]
    probabilities = progress.log_probs[: part.beams] if request.return_log_probs else _zeros(beams)
    cumulative = progress.cumulative[: part.beams] if request.return_log_probs else [0.0] * len(beams)
    tensors = {
        "output_ids": torch.tensor([_padded(tokens)], dtype=torch.int32),
        "sequence_length": torch.tensor([[len(beam) for beam in tokens]], dtype=torch.int32),
        "cum_log_probs": torch.tensor([list(cumulative)], dtype=torch.float32),
        "output_log_probs": torch.tensor([_padded(probabilities)], dtype=torch.float32),
        "batch_index": torch.tensor([[part.batch_index]], dtype=torch.int32),
        "sequence_index": torch.tensor([[part.sequence_index]], dtype=torch.int32),
        "context_logits": _logits(progress.context_logits, 2),
        "generation_logits": _logits(
            None if progress.generation_logits is None else progress.generation_logits[: part.beams], 3
        ),
    }
    return {name: tensor for name, tensor in tensors.items() if name in wanted}


def _zeros(beams: Sequence[Sequence[int]]) -> list[list[float]]:
    return [[0.0] * len(beam) for beam in beams]


def _padded(beams: Sequence[Sequence[float]]) -> list[list[float]]:
    longest = max(map(len, beams))
    return [[*beam, *[PADDING] * (longest - len(beam))] for beam in beams]


def _logits(logits: torch.Tensor | None, dims: int) -> torch.Tensor:
    """Logits with a batch dimension; one zero where there are none.

    An ensemble, whose requests want every output, fails without them.
    """
    import torch

    if logits is None:
        return torch.zeros((1,) * (dims + 1))
    return logits.float().contiguous()[None]
