"""Fewer kernels in a forward pass on GPUs.

A decode step of a small model launches some forty kernels for each layer, and each takes longer to launch
than to run. Norms, rotary embeddings and activations are several kernels each; here each is one
(``fusion_kernels``). On an H200 a step of a model of 1 B parameters takes 2.0 ms instead of 2.9.

Models write these parts in several ways. So each replacement is tried beside what it replaces, on random
numbers, and left out where it differs. ``torch.compile`` would make such kernels for any model, but takes 8 s
at each start even where it finds what it compiled before.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

_log = logging.getLogger(__name__)

_ROTARY = "apply_rotary_pos_emb"
"""The name of the function in transformers' modelling files."""

_MOST_DIFFERENCE = 0.01
"""Largest distance of two results, relative to their size: rounding to 16 bits gives less."""

Function = Callable[..., Any]


def can_compile(device: torch.device) -> bool:
    """Whether the kernels can be compiled for this rank's device. Not collective."""
    if device.type != "cuda":
        return False
    try:
        # A thread has a current device of its own.
        torch.cuda.set_device(device)
        from trtllm_hpc.reference import fusion_kernels

        row = torch.ones(1, 16, device=device)
        fusion_kernels.rms_norm(row, row[0], 1e-6)
        fusion_kernels.silu_times(row, row)
        fusion_kernels.rotate(row[None, None], row[None], row[None])
    except Exception as error:  # noqa: BLE001 - Triton raises what the compilers below it raise
        _log.warning("the model runs without fused kernels, because they cannot be compiled: %s", error)
        return False
    return True


def fuse(model: Any) -> None:
    """Replace small parts of a model on a GPU by single kernels, each if it gives the same.

    Collective where the model is split: the parts are tried with all ranks.
    """
    started = time.perf_counter()
    counts: Counter[str] = Counter()
    fits: dict[type, bool] = {}
    for module in model.modules():
        kind = type(module)
        fused = _fused(module)
        if fused is None or "forward" in vars(module):
            continue
        if kind not in fits:
            fits[kind] = _agree(fused, module.forward, _random(model, _input_size(module)))
        if fits[kind]:
            module.forward = fused
            counts[kind.__name__] += 1
    modelling = sys.modules[type(model).__module__]
    original = getattr(modelling, _ROTARY, None)
    if original is not None and _agree(_rotary(original), original, *_rotary_sample(model)):
        setattr(modelling, _ROTARY, _rotary(original))
        counts[_ROTARY] = 1
    shown = ", ".join(f"{count} x {name}" for name, count in counts.items()) or "none fits"
    _log.info("fused kernels ready in %.1f s: %s", time.perf_counter() - started, shown)


def _fused(module: Any) -> Function | None:
    """A replacement for a module's ``forward``, by the names of its parts; ``None`` if there is none."""
    from trtllm_hpc.reference import fusion_kernels

    if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
        return lambda values: fusion_kernels.rms_norm(values, module.weight, module.variance_epsilon)
    parts = ("gate_proj", "up_proj", "down_proj", "act_fn")
    if all(hasattr(module, name) for name in parts) and hasattr(module.gate_proj, "weight"):
        # The feed-forward part of most models: SiLU of one projection times another one.
        silu_times = fusion_kernels.silu_times
        return lambda values: module.down_proj(silu_times(module.gate_proj(values), module.up_proj(values)))
    return None


def _rotary(original: Function) -> Function:
    from trtllm_hpc.reference.fusion_kernels import rotate

    def apply(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *more: Any, **named: Any
    ) -> Any:
        is_usual = not more and not named and q.ndim == 4 and cos.ndim == 3 and q.shape[-1] == cos.shape[-1]
        # The function belongs to a module of transformers, which may also have a model on the CPU.
        if is_usual and q.is_cuda and q.stride(-1) == k.stride(-1) == cos.stride(-1) == 1:
            return rotate(q, cos, sin), rotate(k, cos, sin)
        return original(q, k, cos, sin, *more, **named)

    return apply


def _agree(fused: Function, original: Function, *inputs: torch.Tensor) -> bool:
    """Whether two functions give the same for the same inputs."""
    try:
        pairs = list(zip(_tensors(fused(*inputs)), _tensors(original(*inputs)), strict=True))
    except Exception as error:  # noqa: BLE001 - a part that only looks like one of ours stays as it is
        _log.warning("a part of the model keeps its own kernels: %s", error)
        return False
    return all(
        float((ours.float() - theirs.float()).norm() / theirs.float().norm()) <= _MOST_DIFFERENCE
        for ours, theirs in pairs
    )


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _input_size(module: Any) -> int:
    weight = module.weight if hasattr(module, "weight") else module.gate_proj.weight
    return int(weight.shape[-1])


def _random(model: Any, *shape: int) -> torch.Tensor:
    """Random numbers [3, ...], the same on every rank: a part may sum over the ranks."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, *shape, generator=generator).to(model.device, model.dtype)


def _rotary_sample(model: Any) -> tuple[torch.Tensor, ...]:
    """Queries and keys [3, heads, tokens, size]; cosines and sines of angles [3, tokens, size]."""
    config = model.config.get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    angles = _random(model, 5, size).float()
    states = _random(model, 5, 4, size).transpose(1, 2)
    return states, states[:, :2], angles.cos().to(model.dtype), angles.sin().to(model.dtype)
