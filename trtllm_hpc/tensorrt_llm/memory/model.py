"""What of a model takes memory: its matrices, and how ranks share them.

A matrix is cut as TensorRT-LLM cuts it (``ColumnLinear``, ``RowLinear``,
``Attention``, ``MOE``). How a ``config.json`` is read: ``memory_families``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Matrix:
    """Equal matrices of one layer (or of none), with their biases."""

    outputs: int
    inputs: int
    cut: Literal["outputs", "inputs", "whole"] = "whole"
    """What the tensor parallel ranks share among them."""
    unit: int = 1
    """Outputs are cut in whole units, a unit at least to each rank: KV heads are repeated where ranks
    outnumber them. With a unit of 1 this is how TensorRT-LLM pads the vocabulary (``pad_vocab_size``)."""
    bias: bool = False
    count: int = 1
    expert: bool = False
    """Whether the ``count`` matrices are experts, which expert parallel ranks share among them."""
    quantized: bool = True
    """Whether quantization touches it."""
    bytes_each: int | None = None
    """Where the type is fixed: TensorRT-LLM keeps routers in float32."""

    @property
    def parameters(self) -> int:
        """All of them, on all ranks together."""
        return self.count * self.outputs * (self.inputs + self.bias)


@dataclass(frozen=True)
class Stack:
    """Equal layers, and the tables that feed them."""

    layers: int
    matrices: tuple[Matrix, ...]
    """Of one layer."""
    vectors: int
    """Elements of one layer's norms; every rank has them whole."""
    kv_heads: int
    head_size: int
    hidden: int
    wide: int
    """Inner size of the MLP: with ``hidden`` it decides how wide a step's activations are."""
    tables: tuple[Matrix, ...]
    """Embeddings; the first pipeline stage has them."""
    last_vectors: int
    """Elements of the last norm; the last pipeline stage has it."""

    @property
    def parameters(self) -> int:
        """All of them, tables included."""
        layer = sum(matrix.parameters for matrix in self.matrices) + self.vectors
        return self.layers * layer + sum(table.parameters for table in self.tables) + self.last_vectors


@dataclass(frozen=True)
class ModelShape:
    """A whole model."""

    family: str
    """``model_type`` of the configuration."""
    decoder: Stack
    head: Matrix
    """The matrix from hidden states to the vocabulary."""
    tied: bool
    """Whether the head is the token embedding once more."""
    encoder: Stack | None = None
    dtype: str | None = None
    """Type of the stored weights."""
    longest: int | None = None
    """Tokens that the model's positions allow."""

    @property
    def vocabulary(self) -> int:
        """Tokens."""
        return self.head.outputs

    @property
    def parameters(self) -> int:
        """As transformers counts them: what is tied counts once."""
        head = self.head.outputs * self.head.bias if self.tied else self.head.parameters
        total = self.decoder.parameters + head
        if self.encoder is not None:
            total += self.encoder.parameters - self.encoder.tables[0].parameters
        return total
