"""Whether a model computes the same through our pages as by itself: asked once, when its engine is built."""

from __future__ import annotations

from typing import Any

import torch

from trtllm_hpc.reference import attention
from trtllm_hpc.reference.executor import Executor
from trtllm_hpc.reference.generation import GenerationRequest
from trtllm_hpc.reference.paged_cache import PagedCache, layer_shapes
from trtllm_hpc.reference.steps import Admission, Chunk, Decode, Step

_LONG, _SHORT, _BLOCK = 11, 5, 4
"""Tokens of the two prompts and of a block: each is read in two parts, over several blocks."""

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.1}
"""Distance allowed, of the spread of the logits. Another order of sums in 16 bits gives a few per cent in
a deep model; attention that is wrong gives about 1."""


@torch.no_grad()
def difference(model: Any) -> str | None:
    """How the model's logits differ between the two ways; ``None`` if they do not.

    Two prompts of different length are read in two steps, and then one token
    more of each. The model is left as it was.
    """
    prompts = [_prompt(model, length, first) for length, first in ((_LONG, 3), (_SHORT, 7))]
    expected = torch.stack([model(torch.tensor([prompt])).logits[0, -1] for prompt in prompts]).float()
    own = model.config._attn_implementation
    attention.register()
    model.set_attn_implementation(attention.NAME)
    try:
        found = _through_pages(model, prompts).float()
    except Exception as error:  # noqa: BLE001 - called in an unusual way, a foreign model may raise anything
        return f"computing in pages ends with {type(error).__name__}: {error}"
    finally:
        model.set_attn_implementation(own)
    distance = float((found - expected).norm() / (expected - expected.mean(-1, keepdim=True)).norm())
    if distance <= _TOLERANCE[model.dtype]:
        return None
    return f"computed in pages, its logits are off by {distance:.2g} of their spread"


def _prompt(model: Any, length: int, first: int) -> list[int]:
    vocabulary = model.config.get_text_config().vocab_size
    return [(first + 31 * index) % vocabulary for index in range(length)]


def _through_pages(model: Any, prompts: list[list[int]]) -> torch.Tensor:
    """[prompts, vocabulary]: logits after the last token, which is decoded; those before it are read."""
    blocks = -(-_LONG // _BLOCK)
    cache = PagedCache(
        layer_shapes(model),
        blocks=blocks * len(prompts),
        tokens_per_block=_BLOCK,
        dtype=model.dtype,
        device=model.device,
    )
    runner = Executor(model, cache, slots=len(prompts), blocks_per_sequence=blocks)
    read = [len(prompt) - 1 for prompt in prompts]
    admitted = tuple(
        Admission(
            slot,
            (tuple(range(1 + slot * blocks, 1 + (slot + 1) * blocks)),),
            GenerationRequest(prompt=tuple(prompt[:-1]), max_new_tokens=1),
        )
        for slot, prompt in enumerate(prompts)
    )
    halves = tuple(Chunk(slot, 0, tokens // 2) for slot, tokens in enumerate(read))
    rests = tuple(Chunk(slot, tokens // 2, tokens - tokens // 2) for slot, tokens in enumerate(read))
    runner.run(Step(admitted=admitted, chunks=halves))
    runner.run(Step(chunks=rests))
    last = tuple(Decode(slot, prompt[-1], len(prompt) - 1) for slot, prompt in enumerate(prompts))
    logits = runner.run(Step(decodes=last)).logits
    assert logits is not None
    return logits
