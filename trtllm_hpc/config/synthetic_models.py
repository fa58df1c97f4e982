"""The synthetic models that ``model.synthetic`` names. Standard library only."""

from __future__ import annotations

from typing import Any

TINY = "tiny-llama"
"""A random Llama of 3.5 million parameters."""

STAND_IN = "stand-in"
"""The one without weights: an engine that answers at once with words of no meaning, and needs no PyTorch."""

VOCAB_SIZE = 512

SHAPE: dict[str, Any] = {
    # Every dimension can be split over 1, 2, 4 or 8 ranks.
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    # Wide enough that greedy output does not fall into one repeated token.
    "initializer_range": 0.2,
}
"""Shape of the tiny model; the one without weights is planned for alike."""
