"""What a rank takes beside weights and KV cache: an estimate.

Fitted to the logs that people have published ("Allocated ... for execution
context memory", "... GPU memory for runtime buffers", "... for decoder"):
TensorRT-LLM's own example in docs/source/reference/memory.md (7B, TP 2),
NVIDIA/TensorRT-LLM issue 1188 (Qwen 0.5B, batch 2048) and issue 3636 (8B,
128,000 tokens a step). docs/memory.md sets them beside these formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_hpc.config.engine import Engine
from trtllm_hpc.tensorrt_llm.memory.limits import Limits
from trtllm_hpc.tensorrt_llm.memory.model import ModelShape
from trtllm_hpc.tensorrt_llm.memory.weights import BYTES, Parallel

_HIDDEN_STATES = 3
"""Rows of the hidden size that a token has at once, beside the MLP's."""

_LOGIT_COPIES = 7
"""Times that runtime and decoder hold a row of logits in float32 for each request."""

_REFERENCE_LOGIT_COPIES = 2

_REFERENCE_ACTIVATIONS = 8
"""PyTorch's allocator, CUDA graphs and unfused layers against TensorRT's one arena; measured on an H200."""

_WORKSPACE = 32 * 2**20
"""cuBLAS's."""

_GPU_CONTEXT = round(0.75 * 2**30)
"""CUDA's context, kernels, NCCL and Triton's own pool."""

_PROCESS = round(0.5 * 2**30)
"""Python and PyTorch, where the memory is the node's."""


@dataclass(frozen=True)
class Buffers:
    """Bytes, roughly."""

    activations: int
    """Of one step of ``max_num_tokens`` tokens."""
    logits: int
    """Of a full batch, with the decoder's copies."""
    context: int
    """Of CUDA and the libraries, or of the process."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.activations + self.logits + self.context


def buffers_of(
    shape: ModelShape, parallel: Parallel, limits: Limits, engine: Engine, dtype: str, *, on_gpu: bool
) -> Buffers:
    """The estimate for one rank."""
    steps = limits.step_tokens or 0
    rows = min((limits.batch or 1) * limits.beams, steps) if steps else limits.batch or 1
    stack = shape.decoder
    wide = _HIDDEN_STATES * stack.hidden + stack.wide / parallel.tensor
    # The head computes the last token of each request only, unless all logits are gathered.
    head_rows = steps if engine.gather_context_logits else rows
    head = head_rows * shape.vocabulary / parallel.tensor
    copies, unfused = (
        (_LOGIT_COPIES, 1) if engine.is_tensorrt_llm else (_REFERENCE_LOGIT_COPIES, _REFERENCE_ACTIVATIONS)
    )
    return Buffers(
        activations=round((steps * wide * unfused + head) * BYTES[dtype]) + (_WORKSPACE if on_gpu else 0),
        logits=rows * shape.vocabulary * 4 * copies,
        context=_GPU_CONTEXT if on_gpu else _PROCESS,
    )
