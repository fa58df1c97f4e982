"""The kernels of ``fusion``, in the language of OpenAI's Triton, which torch for GPUs brings.

Norms and activations are those of the models' own code bit for bit; rotary embeddings are rounded less often.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _rms_norm(
    values: tl.tensor, weight: tl.tensor, out: tl.tensor, size: tl.tensor, eps: tl.tensor, BLOCK: tl.constexpr
) -> None:
    start = tl.program_id(0).to(tl.int64) * size
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    row = tl.load(values + start + columns, mask=inside, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(row * row, 0) / size + eps)
    kind = out.dtype.element_ty
    normed = (row * scale).to(kind).to(tl.float32)
    factors = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + start + columns, (factors * normed).to(kind), mask=inside)


def rms_norm(values: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The rows of ``values`` [..., size] over the root of their mean square, times ``weight`` [size]."""
    values = values.contiguous()
    out, size = torch.empty_like(values), values.shape[-1]
    grid = (values.numel() // size,)
    _rms_norm[grid](values, weight, out, size, eps, BLOCK=triton.next_power_of_2(size))
    return out


_PIECE = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _silu_times(
    gate: tl.tensor, up: tl.tensor, out: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr
) -> None:
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    values = tl.load(gate + places, mask=inside, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    active = (values / (1 + tl.exp(-values))).to(kind).to(tl.float32)
    factors = tl.load(up + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + places, (active * factors).to(kind), mask=inside)


def silu_times(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """SiLU of ``gate`` times ``up``, of the same shape."""
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    _silu_times[(triton.cdiv(gate.numel(), _PIECE),)](gate, up, out, gate.numel(), BLOCK=_PIECE)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _rotate(
    values: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    out: tl.tensor,
    heads: tl.tensor,
    tokens: tl.tensor,
    batch_step: tl.tensor,
    head_step: tl.tensor,
    token_step: tl.tensor,
    out_batch_step: tl.tensor,
    out_head_step: tl.tensor,
    out_token_step: tl.tensor,
    angle_batch_step: tl.tensor,
    angle_token_step: tl.tensor,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    program = tl.program_id(0).to(tl.int64)
    token, head, row = program % tokens, program // tokens % heads, program // tokens // heads
    start = values + row * batch_step + head * head_step + token * token_step
    target = out + row * out_batch_step + head * out_head_step + token * out_token_step
    angle = row * angle_batch_step + token * angle_token_step
    places = tl.arange(0, BLOCK)
    inside = places < HALF
    first = tl.load(start + places, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(start + HALF + places, mask=inside, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    for half in tl.static_range(2):
        own, other = (first, -second) if half == 0 else (second, first)
        at = angle + half * HALF + places
        scaled = (own * tl.load(cos + at, mask=inside, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
        turned = (other * tl.load(sin + at, mask=inside, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
        tl.store(target + half * HALF + places, (scaled + turned).to(kind), mask=inside)


def rotate(values: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of ``values`` [rows, heads, tokens, size] by angles [rows or 1, tokens, size]."""
    rows, heads, tokens, size = values.shape
    out = torch.empty_like(values)
    half = size // 2
    _rotate[(rows * heads * tokens,)](
        values,
        cos,
        sin,
        out,
        heads,
        tokens,
        *values.stride()[:3],
        *out.stride()[:3],
        cos.stride(0) if cos.shape[0] > 1 else 0,
        cos.stride(1),
        HALF=half,
        BLOCK=triton.next_power_of_2(half),
    )
    return out
