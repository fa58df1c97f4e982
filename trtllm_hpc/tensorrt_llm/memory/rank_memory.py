"""What one rank holds: formats of weights, the part of each matrix, limits and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_hpc.config.engine import Engine, Quantization
from trtllm_hpc.tensorrt_llm.memory.shapes import Matrix, Stack

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Of one element of each type."""


@dataclass(frozen=True)
class MemoryModel:
    """How a backend uses a rank's memory."""

    logit_copies: int = 7
    """Times that runtime and decoder hold a row of logits in float32 for each request."""
    activations: int = 1
    """Memory for activations, as a multiple of what TensorRT's one arena takes."""
    fills_memory: bool = True
    """Whether the KV cache takes the memory that is left, and not only what a full batch can use."""
    pipelines: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Sizes of ``engine.pipeline_parallel`` that can be suggested."""


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
        weights = outputs * inputs
        scales = outputs * self.bytes_row + inputs * self.bytes_column
        return weights * self.bytes_each + weights / self.group * self.bytes_group + scales


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
    expert = engine.moe_expert_parallel or tensor // (engine.moe_tensor_parallel or tensor)
    return Parallel(tensor, engine.pipeline_parallel, engine.context_parallel, max(expert, 1))


def format_of(quantization: Quantization, dtype: str) -> Format:
    """How the quantized matrices are stored.

    Scales as TensorRT-LLM's quantized layers hold them (``quantization/layers.py``): float32 for each output
    of INT8 and of row-wise FP8, 16 bits for each output of weight-only matrices and for each group of AWQ,
    and zeros besides for GPTQ; 16 bits for each output of QServe, with zeros or, by groups, 8 bits and 8 bits
    of zeros for each; 8 bits for each 16 inputs of NVFP4.
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
        "w4a8_qserve_per_group": Format(0.5, bytes_group=2, bytes_row=2),
        "w4a8_qserve_per_channel": Format(0.5, bytes_row=4),
        "nvfp4": Format(0.5, bytes_group=1, group=16),
        "auto": Format(bits / 8 if bits else BYTES[dtype]),
    }
    return formats.get(str(quantization.method), Format(BYTES[dtype]))


@dataclass(frozen=True)
class Sizes:
    """Bytes of one rank's part of layers, tables and matrices."""

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


@dataclass(frozen=True)
class Limits:
    """What the engine's memory is sized by."""

    batch: int | None
    beams: int
    step_tokens: int | None
    """Tokens that one step computes at most."""
    request_tokens: int | None
    """Tokens of KV cache that the longest request takes, in whole blocks, with all its beams."""
    request_key: str
    """The key of the job file that decides it."""
    decoder_share: float
    """Share of the KV cache for the decoder's own tokens; the rest is for what an encoder computed."""

    @property
    def whole_batch(self) -> int | None:
        """Tokens of a batch of the longest requests."""
        return None if self.batch is None or self.request_tokens is None else self.batch * self.request_tokens


@dataclass(frozen=True)
class Buffers:
    """Bytes, roughly."""

    activations: int
    """Of one step of ``max_num_tokens`` tokens."""
    logits: int
    """Of a full batch, with the decoder's copies."""
    context: int
    """Of CUDA and the libraries, or of the process."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.activations + self.logits + self.context
