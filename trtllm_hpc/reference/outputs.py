"""The tensors that answer one request to the ``tensorrt_llm`` model."""

from __future__ import annotations

import torch

from trtllm_hpc.reference.requests import Completion, GenerationRequest


def output_tensors(request: GenerationRequest, completion: Completion) -> dict[str, torch.Tensor]:
    """Output tensors by name, with one row (batch) and one beam.

    ``sequence_length`` counts the tokens of ``output_ids``: prompt and new
    ones, or the new ones alone if the request excludes its prompt.
    """
    kept = () if request.exclude_input else request.prompt
    tokens = (*kept, *completion.new_tokens)
    return {
        "output_ids": torch.tensor([[tokens]], dtype=torch.int32),
        "sequence_length": torch.tensor([[len(tokens)]], dtype=torch.int32),
        "cum_log_probs": torch.tensor([[sum(completion.log_probs)]], dtype=torch.float32),
        "output_log_probs": torch.tensor([[completion.log_probs]], dtype=torch.float32),
    }
