"""The synthetic models that ``model.synthetic`` names. Standard library only."""

from __future__ import annotations

from typing import Any

TINY = "tiny-llama"
"""A random Llama of 3.5 million parameters."""

STAND_IN = "stand-in"
"""A model without weights, whose engine answers random words at once and needs no PyTorch."""

VOCAB_SIZE = 512

SHAPE: dict[str, Any] = {
    # 1, 2, 4 or 8 ranks can split every dimension.
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    # With a narrower range, greedy decoding repeats a single token.
    "initializer_range": 0.2,
}
"""Shape of the tiny model; the memory planner uses it for the stand-in, too."""
