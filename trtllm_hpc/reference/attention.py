"""Attention over the paged KV cache, as a function that transformers' models call by its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from trtllm_hpc.errors import StartFailed

NAME = "trtllm_hpc_paged"
"""The name for ``set_attn_implementation``.

transformers makes no mask for a name without a mask function, and passes a
mask of four dimensions on unchanged. So the executor's masks arrive here.
"""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """torch's attention; [batch, heads, tokens, head size] in, [batch, tokens, heads, head size] out.

    Without a mask the queries are the newest tokens of their sequences: a single one sees all keys, several
    see the keys up to their own. Raises StartFailed if the model needs another kind of attention.
    """
    for name, value_given in (("softcap", softcap), ("s_aux", s_aux), ("position_bias", position_bias)):
        if value_given is not None:
            raise StartFailed(f"The reference backend's attention has no {name}, which this model needs.")
    batch, heads, tokens, size = query.shape
    groups = key.shape[1]
    if tokens == 1 and groups < heads:
        # Query heads that share keys become rows of one head, so that the keys are not copied for each.
        grouped = query.reshape(batch, groups, heads // groups, size)
        mask = None if attention_mask is None else attention_mask.expand(-1, -1, heads // groups, -1)
        output = scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
        return output.reshape(batch, 1, heads, -1), None
    if query.is_cuda and attention_mask is not None and groups < heads:
        # With a mask and shared keys torch has only the kernel that writes all scores to memory: 30 ms for
        # 512 tokens after 4,096 in 22 layers, instead of 4.
        key, value = (item.repeat_interleave(heads // groups, dim=1) for item in (key, value))
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=attention_mask is None and tokens > 1,
        scale=scaling,
        enable_gqa=key.shape[1] < heads,
    )
    return output.transpose(1, 2).contiguous(), None


def register() -> None:
    """Make ``attend`` known to transformers under ``NAME``."""
    from transformers import AttentionInterface

    torch.backends.cuda.enable_cudnn_sdp(False)
    AttentionInterface.register(NAME, attend)


@contextmanager
def planned() -> Iterator[None]:
    """Let torch choose cuDNN's attention meanwhile, which plans each new shape for some 40 ms.

    So it is for shapes that come again and again, if they have many keys: on an H200 a decode step of 8 rows
    of 4,224 tokens takes 3.5 ms instead of 7.1, of 256 tokens 1.9 instead of 2.1.
    """
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(False)
