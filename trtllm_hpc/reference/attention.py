"""Attention over the paged KV cache: the pool of blocks, and the function that reads from it.

A block holds ``tokens_per_block`` tokens of one sequence in every layer. The blocks of a sequence are listed
in its row of a block table, as in PagedAttention (Kwon et al., SOSP 2023). Block 0 belongs to no sequence:
padding is written there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicCache

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.reference.stop_words import to_device

PADDING_BLOCK = 0


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one layer's keys and values on this rank."""

    heads: int
    key_size: int
    value_size: int


class PagedCache(Cache):  # type: ignore[misc]
    """The cache that a model's forward pass writes to and reads from.

    ``aim`` sets, before each pass, where its tokens are written and which blocks its rows read. The tensors
    of the pool never move, so that CUDA graphs may hold their addresses.
    """

    def __init__(self, model: Any, layers: list[LayerShape], *, blocks: int, tokens_per_block: int) -> None:
        super().__init__(layers=[])
        self.tokens_per_block = tokens_per_block
        slots = (blocks + 1) * tokens_per_block
        dtype, device = model.dtype, model.device
        # Zeros, because masked values are still multiplied, and so must be finite.
        self._keys = [torch.zeros(slots, s.heads, s.key_size, dtype=dtype, device=device) for s in layers]
        self._values = [torch.zeros(slots, s.heads, s.value_size, dtype=dtype, device=device) for s in layers]
        self._write: torch.Tensor | None = None
        self._reads: torch.Tensor | None = None
        self._read_tokens = tokens_per_block

    def aim(self, write: torch.Tensor, reads: torch.Tensor | None, *, by_token: bool = False) -> None:
        """Set the target of the next pass.

        ``write`` is the index in the pool of each token of the pass, [rows * tokens]. ``reads`` are [rows,
        blocks], or with ``by_token`` indices of tokens, [rows, tokens]: only as many as are needed, in
        smaller pieces. With ``None`` the rows read only what the pass itself writes.
        """
        self._write, self._reads = write, reads
        self._read_tokens = 1 if by_token else self.tokens_per_block

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the pass's keys and values; return what its rows may attend to (transformers' interface)."""
        assert self._write is not None
        for pool, states in ((self._keys[layer_idx], key_states), (self._values[layer_idx], value_states)):
            pool.index_copy_(0, self._write, states.transpose(1, 2).flatten(0, 1))
        if self._reads is None:
            return key_states, value_states
        return self._read(self._keys[layer_idx]), self._read(self._values[layer_idx])

    def forget(self, blocks: Sequence[int]) -> None:
        """Set all keys and values in these blocks to zero."""
        places = to_device(torch.tensor(blocks), self._keys[0].device)
        for pool in (*self._keys, *self._values):
            pool.view(-1, self.tokens_per_block, *pool.shape[1:]).index_fill_(0, places, 0)

    def _read(self, pool: torch.Tensor) -> torch.Tensor:
        """A copy of what the rows read, [rows, heads, tokens, head size]."""
        assert self._reads is not None
        _, heads, size = pool.shape
        pieces = pool.view(-1, self._read_tokens * heads * size).index_select(0, self._reads.flatten())
        return pieces.view(self._reads.shape[0], -1, heads, size).transpose(1, 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: the executor passes positions and masks, so transformers must not derive them from this."""
        return 0


def layer_shapes(model: Any) -> list[LayerShape]:
    """Sizes of the keys and values of each layer, from one pass over one token. Collective."""
    cache = DynamicCache()
    token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    with torch.no_grad():
        model(token, position_ids=token, past_key_values=cache, use_cache=True)
    return [
        LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in cache.layers
    ]


_NAME = "trtllm_hpc_paged"
"""The name of ``attend`` for ``set_attn_implementation``.

transformers makes no mask for a name without a mask function, and passes a
mask of four dimensions on unchanged. So the executor's masks arrive there.
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


def use(model: Any) -> None:
    """Make a model compute its attention by ``attend``."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    AttentionInterface.register(_NAME, attend)
    model.set_attn_implementation(_NAME)


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
