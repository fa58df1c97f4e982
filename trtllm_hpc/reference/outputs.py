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
    """Output tensors by name, those that are wanted and that there are.

    ``output_ids`` holds prompt and answer. It holds the new tokens alone if
    the request excludes its prompt, or wants each token as it comes.
    """
    tensors = {**_tokens(part, progress), **_logits(part, progress)}
    return {name: tensor for name, tensor in tensors.items() if name in wanted}


def _tokens(part: Part, progress: Progress) -> dict[str, torch.Tensor]:
    import torch

    request = part.request
    kept = () if request.exclude_input or request.streaming else request.prompt
    tokens = [(*kept, *beam) for beam in progress.tokens[: part.beams]]
    tensors = {
        "output_ids": torch.tensor([_padded(tokens)], dtype=torch.int32),
        "sequence_length": torch.tensor([[len(beam) for beam in tokens]], dtype=torch.int32),
    }
    if request.return_log_probs:
        probabilities = _padded(progress.log_probs[: part.beams])
        tensors["output_log_probs"] = torch.tensor([probabilities], dtype=torch.float32)
        tensors["cum_log_probs"] = torch.tensor([progress.cumulative[: part.beams]], dtype=torch.float32)
    for name, index in (("batch_index", part.batch_index), ("sequence_index", part.sequence_index)):
        if index is not None:
            tensors[name] = torch.tensor([[index]], dtype=torch.int32)
    return tensors


def _logits(part: Part, progress: Progress) -> dict[str, torch.Tensor]:
    tensors = {}
    if progress.context_logits is not None:
        tensors["context_logits"] = progress.context_logits.float().contiguous()[None]
    if progress.generation_logits is not None:
        tensors["generation_logits"] = progress.generation_logits[: part.beams].float().contiguous()[None]
    return tensors


def _padded(beams: Sequence[Sequence[float]]) -> list[list[float]]:
    longest = max(map(len, beams))
    return [[*beam, *[PADDING] * (longest - len(beam))] for beam in beams]
