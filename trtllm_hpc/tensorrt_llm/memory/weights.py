"""Bytes of a model on one rank: its weights, and its keys and values for one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_hpc.config.engine import Engine, Quantization
from trtllm_hpc.tensorrt_llm.memory.model import Matrix, ModelShape, Stack

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Of one element of each type."""


@dataclass(frozen=True)
class Format:
    """How one weight of a quantized matrix is stored."""

    bytes_each: float
    bytes_row: float = 0
    """Scale of each output."""
    bytes_group: float = 0
    """Scale (and zero) of each ``group`` of inputs of one output."""
    group: int = 128
    bytes_column: float = 0
    """Scale of each input."""

    def size(self, outputs: float, inputs: float) -> float:
        """Bytes of one matrix."""
        groups = outputs * inputs / self.group
        return (
            outputs * inputs * self.bytes_each
            + groups * self.bytes_group
            + outputs * self.bytes_row
            + inputs * self.bytes_column
        )


@dataclass(frozen=True)
class Parallel:
    """How the ranks share the model."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1

    @property
    def expert_tensor(self) -> int:
        """Ranks that split each expert: ``moe_tp * moe_ep`` is the tensor parallel size."""
        return max(self.tensor // self.expert, 1)


def parallel_of(engine: Engine) -> Parallel:
    """The layout that the job file asks for."""
    tensor = engine.tensor_parallel
    expert = engine.moe_expert_parallel or (
        tensor // engine.moe_tensor_parallel if engine.moe_tensor_parallel else 1
    )
    return Parallel(tensor, engine.pipeline_parallel, engine.context_parallel, max(expert, 1))


def dtype_of(engine: Engine, shape: ModelShape) -> str:
    """The type that TensorRT-LLM computes in: ``auto`` is the weights' own, but never float32."""
    if engine.dtype not in (None, "auto"):
        return str(engine.dtype)
    return "bfloat16" if shape.dtype == "bfloat16" else "float16"


def format_of(quantization: Quantization, dtype: str) -> Format:
    """How the quantized matrices are stored.

    Scales as TensorRT-LLM's quantized layers hold them (``quantization/layers.py``):
    float32 for each output of INT8 and of row-wise FP8, 16 bits for each output of
    weight-only matrices and for each group of AWQ, and zeros besides for GPTQ.
    """
    group = quantization.awq_block_size or quantization.group_size or 128
    bits = quantization.auto_bits
    formats = {
        "fp8": Format(1),
        "fp8_rowwise": Format(1, bytes_row=4),
        "int8_sq": Format(1, bytes_row=4, bytes_column=4),
        "int8_wo": Format(1, bytes_row=2),
        "int4_wo": Format(0.5, bytes_row=2),
        "int4_awq": Format(0.5, bytes_group=2, group=group, bytes_column=2),
        "w4a8_awq": Format(0.5, bytes_group=2, group=group, bytes_column=2),
        "int4_gptq": Format(0.5, bytes_group=4, group=group),
        "auto": Format(bits / 8 if bits else BYTES[dtype]),
    }
    return formats.get(str(quantization.method), Format(BYTES[dtype]))


def weight_bytes(
    shape: ModelShape,
    parallel: Parallel,
    dtype: str,
    quantized: Format,
    *,
    shares_embedding: bool = True,
    parallel_embedding: bool = False,
) -> int:
    """Bytes of weights on the rank that has most of them.

    Args:
        shares_embedding: whether a head that is tied to the embedding takes no memory of its own.
            It cannot be shared when only one of the two is cut, or when they are on different stages.
        parallel_embedding: whether the ranks share the token embedding.
    """
    sizes = _Sizes(parallel, BYTES[dtype], quantized)
    is_shared = shape.tied and shares_embedding and (parallel.tensor == 1 or parallel_embedding)
    head = sizes.matrix(shape.head)
    stages = []
    for stage in range(parallel.pipeline):
        is_first, is_last = stage == 0, stage == parallel.pipeline - 1
        total = sizes.layers(shape.decoder)
        if is_first:
            total += sizes.tables(shape.decoder.tables, is_cut=parallel_embedding)
        if is_last:
            total += shape.decoder.last_vectors * sizes.plain
            total += 0 if is_shared and is_first else head
        stages.append(total)
    # The encoder of T5 is an engine of its own on every rank, with an embedding of its own.
    encoder = shape.encoder
    extra = 0.0
    if encoder is not None:
        extra = sizes.layers(encoder) + sizes.tables(encoder.tables, is_cut=parallel_embedding)
    return round(max(stages) + extra)


@dataclass(frozen=True)
class _Sizes:
    parallel: Parallel
    plain: int
    """Bytes of what no quantization touches."""
    quantized: Format

    def layers(self, stack: Stack) -> float:
        """The layers of the longest stage."""
        layer = sum(map(self.matrix, stack.matrices)) + stack.vectors * self.plain
        return -(-stack.layers // self.parallel.pipeline) * layer

    def tables(self, tables: Sequence[Matrix], *, is_cut: bool) -> float:
        """The token embedding, cut if asked, and the other tables, always whole."""
        tokens, *others = (table.parameters * self.plain for table in tables)
        return tokens / (self.parallel.tensor if is_cut else 1) + sum(others)

    def matrix(self, matrix: Matrix) -> float:
        """Bytes of a rank's part."""
        ranks = self.parallel.expert_tensor if matrix.expert else self.parallel.tensor
        count = -(-matrix.count // self.parallel.expert) if matrix.expert else matrix.count
        outputs: float = matrix.outputs
        inputs: float = matrix.inputs
        if matrix.cut == "outputs":
            outputs = -(-(outputs // matrix.unit) // ranks) * matrix.unit
        elif matrix.cut == "inputs":
            inputs /= ranks
        bias = outputs * matrix.bias * self.plain
        if matrix.bytes_each is not None:
            return count * (outputs * inputs * matrix.bytes_each + bias)
        stored = self.quantized if matrix.quantized else Format(self.plain)
        return count * (stored.size(outputs, inputs) + bias)


def kv_bytes_per_token(shape: ModelShape, parallel: Parallel, cache_bytes: int) -> int:
    """Bytes of keys and values that one token takes on the rank with most layers.

    A head at least is on each rank: with more ranks than KV heads the heads are
    repeated (``gptJsonConfig.cpp``: ``max(numKvHeads / (tp * cp), 1)``).
    """
    stack = shape.decoder
    layers = -(-stack.layers // parallel.pipeline)
    heads = max(-(-stack.kv_heads // (parallel.tensor * parallel.context)), 1)
    return layers * 2 * heads * stack.head_size * cache_bytes


def cache_bytes_of(engine: Engine, dtype: str) -> int:
    """Bytes of one element of the KV cache."""
    return 1 if engine.quantization.kv_cache in ("int8", "fp8") else BYTES[dtype]
