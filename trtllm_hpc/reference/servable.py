"""Checks, when an engine is built, that the reference backend can serve its model."""

from __future__ import annotations

from typing import Any

import torch

from trtllm_hpc.errors import BuildFailed
from trtllm_hpc.reference import attention, sharding
from trtllm_hpc.reference.attention import PagedCache, layer_shapes
from trtllm_hpc.reference.executor import Executor
from trtllm_hpc.reference.generation import GenerationRequest
from trtllm_hpc.reference.scheduler import Admission, Chunk, Decode, Step


def check(model: Any, tensor_parallel: int, max_seq_len: int) -> None:
    """Refuse a model that cannot be split over the ranks, or that the paged KV cache would change.

    Raises BuildFailed with the reason.
    """
    config = model.config.get_text_config()
    for name in ("num_attention_heads", "num_key_value_heads"):
        value = getattr(config, name, None)
        if value is not None and value % tensor_parallel:
            raise BuildFailed(
                f"The model's {name} is {value}, which cannot be split over "
                f"--tensor-parallel {tensor_parallel} ranks."
            )
    sharding.check(model, tensor_parallel)
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and max_seq_len > longest:
        raise BuildFailed(f"--max-seq-len {max_seq_len} exceeds the model's own limit of {longest}.")
    reason = _unsupported(model, config, max_seq_len) or difference(model)
    if reason:
        raise BuildFailed(
            f"The reference backend cannot serve models of type {config.model_type} as they are: {reason}."
        )


def _unsupported(model: Any, config: Any, max_seq_len: int) -> str | None:
    """Why, by its configuration, this model does not compute plain attention over all tokens."""
    if model.config.is_encoder_decoder:
        return "it has an encoder"
    if not model._supports_attention_backend:
        return "transformers does not let its attention be replaced"
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds or model._is_stateful:
        return (
            f"not all of its layers are attention over all tokens ({', '.join(sorted(kinds)) or 'a state'})"
        )
    window = getattr(config, "sliding_window", None)
    if window is not None and window < max_seq_len:
        return f"it attends to the last {window} tokens only, fewer than --max-seq-len {max_seq_len}"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "it limits the scores of its attention (softcapping)"
    if any(name.endswith(".sinks") for name, _ in model.named_parameters()):
        return "its attention has sinks"
    return None


_LONG, _SHORT, _BLOCK = 11, 5, 4
"""Tokens of the two prompts and of a block: each prompt is computed in two parts, over several blocks."""

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.1}
"""Largest distance, relative to the spread of the logits. A different order of sums in 16 bits gives a few
per cent in a deep model; wrong attention gives about 1."""


@torch.no_grad()
def difference(model: Any) -> str | None:
    """How the model's logits differ with the paged KV cache; ``None`` if they do not.

    Two prompts of different length are computed in two steps, and then one
    more token of each. The model is left as it was.
    """
    prompts = [_prompt(model, length, first) for length, first in ((_LONG, 3), (_SHORT, 7))]
    expected = torch.stack([model(torch.tensor([prompt])).logits[0, -1] for prompt in prompts]).float()
    own = model.config._attn_implementation
    attention.use(model)
    try:
        found = _through_pages(model, prompts).float()
    except Exception as error:  # noqa: BLE001 - a foreign model may raise anything
        return f"with a paged KV cache it fails with {type(error).__name__}: {error}"
    finally:
        model.set_attn_implementation(own)
    distance = float((found - expected).norm() / (expected - expected.mean(-1, keepdim=True)).norm())
    if distance <= _TOLERANCE[model.dtype]:
        return None
    return f"with a paged KV cache its logits are off by {distance:.2g} of their spread"


def _prompt(model: Any, length: int, first: int) -> list[int]:
    vocabulary = model.config.get_text_config().vocab_size
    return [(first + 31 * index) % vocabulary for index in range(length)]


def _through_pages(model: Any, prompts: list[list[int]]) -> torch.Tensor:
    """[prompts, vocabulary]: logits after the last token, which is decoded after the ones before it."""
    blocks = -(-_LONG // _BLOCK)
    cache = PagedCache(model, layer_shapes(model), blocks=blocks * len(prompts), tokens_per_block=_BLOCK)
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
