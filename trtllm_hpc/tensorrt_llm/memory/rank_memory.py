"""Bytes on one rank: weights, keys and values of a token, and an estimate of all buffers beside them.

The estimate is fitted to logs that users have published; docs/memory.md sets them beside these formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtllm_hpc.config.engine import Engine, Quantization
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.memory.shapes import Matrix, ModelShape, Stack

if TYPE_CHECKING:
    from trtllm_hpc.tensorrt_llm.releases.release import Release

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Of one element of each type."""
_HIDDEN_STATES = 3
"""Rows of the hidden size that a token has at once, beside the MLP's."""
_WORKSPACE = 32 * 2**20
"""cuBLAS's."""
_GPU_CONTEXT = round(0.75 * 2**30)
"""CUDA's context, kernels, NCCL and Triton's own pool."""
_PROCESS = round(0.5 * 2**30)
"""Python and PyTorch, where the memory is the node's."""


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


def dtype_of(engine: Engine, shape: ModelShape) -> str:
    """The type that TensorRT-LLM computes in: ``auto`` is the weights' own, but never float32."""
    if engine.dtype not in (None, "auto"):
        return str(engine.dtype)
    return "bfloat16" if shape.dtype == "bfloat16" else "float16"


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

    A head that is tied to the embedding (``shares_embedding``) takes memory of its own when only one of the
    two is cut (``parallel_embedding``), or when they are on different stages.
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
    largest = max(stages)
    if shape.encoder is not None:
        # The encoder of T5 is an engine of its own on every rank, with an embedding of its own.
        tables = sizes.tables(shape.encoder.tables, is_cut=parallel_embedding)
        largest += sizes.layers(shape.encoder) + tables
    return round(largest)


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


def limits_of(job: JobFile, shape: ModelShape, release: Release | None, model: MemoryModel) -> Limits:
    """The limits of a job."""
    engine = job.engine
    batch = engine.max_batch_size or _default(release, "--max_batch_size")
    longest, key = _longest(job, shape, release)
    windows = job.kv_cache.max_attention_window
    if windows and longest is not None:
        longest = min(longest, max(windows))
    if longest is not None:
        block = engine.tokens_per_block or _default(release, "--tokens_per_block") or 64
        longest = -(-longest // block) * block * (engine.max_beam_width or 1)
    steps = engine.max_num_tokens or _default(release, "--max_num_tokens") or 8192
    if not model.fills_memory and batch is not None and longest is not None:
        steps = min(steps, batch * longest)
    share = 1 - (job.kv_cache.cross_kv_cache_fraction or 0.5) if shape.encoder is not None else 1.0
    return Limits(batch, engine.max_beam_width or 1, steps, longest, key, share)


def _longest(job: JobFile, shape: ModelShape, release: Release | None) -> tuple[int | None, str]:
    """Tokens of the longest request, and the key that says so."""
    engine = job.engine
    if engine.max_seq_len is not None:
        return engine.max_seq_len, "engine.max_seq_len"
    benchmark = job.companion.benchmark if job.companion.enabled else None
    if engine.max_input_len is not None and benchmark is not None:
        return engine.max_input_len + benchmark.max_tokens, "companion.benchmark.max_tokens"
    inputs, outputs = _default(release, "--max_input_len"), _default(release, "--max_output_len")
    if outputs is not None:  # releases before 0.11
        return (engine.max_input_len or inputs or 0) + outputs, "engine.max_seq_len"
    return _default(release, "--max_seq_len") or shape.longest, "engine.max_seq_len"


def _default(release: Release | None, option: str) -> int | None:
    return release.build_default(option) if release is not None else None


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


def buffers_of(
    shape: ModelShape,
    parallel: Parallel,
    limits: Limits,
    engine: Engine,
    dtype: str,
    model: MemoryModel,
    *,
    on_gpu: bool,
) -> Buffers:
    """The estimate for one rank."""
    steps = limits.step_tokens or 0
    rows = min((limits.batch or 1) * limits.beams, steps) if steps else limits.batch or 1
    stack = shape.decoder
    wide = _HIDDEN_STATES * stack.hidden + stack.wide / parallel.tensor
    # The head computes the last token of each request only, unless all logits are gathered.
    head_rows = steps if engine.gather_context_logits else rows
    head = head_rows * shape.vocabulary / parallel.tensor
    return Buffers(
        activations=round((steps * wide * model.activations + head) * BYTES[dtype])
        + (_WORKSPACE if on_gpu else 0),
        logits=rows * shape.vocabulary * 4 * model.logit_copies,
        context=_GPU_CONTEXT if on_gpu else _PROCESS,
    )
