"""The shapes of the synthetic models that ``model.synthetic`` names. Standard library only."""

from __future__ import annotations

from typing import Any

VOCAB_SIZE = 512
"""Tokens of the smallest model's tokenizer; the larger models have the same ones, and words."""

STAND_IN = "stand-in"
"""The one without weights: an engine that answers at once with words of no meaning, and needs no PyTorch."""

SHAPES: dict[str, dict[str, Any]] = {
    # 3.5 million parameters; every dimension can be split over 1, 2, 4 or 8 ranks.
    "tiny-llama": {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "initializer_range": 0.2,
    },
    # 172 million, for benchmarks on CPUs.
    "llama-170m": {
        "vocab_size": 32000,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 9,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "initializer_range": 0.1,
    },
    # 1,100 million, for benchmarks on GPUs: the shape of TinyLlama-1.1B.
    "llama-1b": {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "initializer_range": 0.07,
    },
}
"""The models by name. Weights are wide enough that greedy output does not fall into one repeated token."""


def shape_of(name: str) -> dict[str, Any]:
    """Return the shape of a synthetic model; the one without weights is planned for as the smallest."""
    return SHAPES["tiny-llama" if name == STAND_IN else name]
