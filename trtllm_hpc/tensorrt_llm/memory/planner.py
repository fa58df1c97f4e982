"""The memory planner: what a model takes of each rank's memory, and how many tokens fit beside it.

Weights and KV cache are sums over the model's matrices and layers. What else a rank takes is an estimate,
fitted to logs that users have published; docs/explanation/memory.md sets them beside these formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.engine import Engine, Quantization
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.memory.shapes import Config, MemoryModel, ModelShape, Parallel, read_shape
from trtllm_hpc.tensorrt_llm.releases.release import Release

GIB = 2**30
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Of one element of each type."""
_HIDDEN_STATES = 3
"""Rows of the hidden size that a token has at once, beside the MLP's."""
_WORKSPACE = 32 * 2**20
"""cuBLAS's."""
_GPU_CONTEXT = round(0.75 * GIB)
"""CUDA's context, kernels, NCCL and Triton's own pool."""
_PROCESS = round(0.5 * GIB)
"""Python and PyTorch, where the memory is the node's."""

Verdict = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True)
class Limits:
    """What the engine's memory is sized by."""

    batch: int | None
    beams: int
    step_tokens: int
    """Tokens that one step computes at most."""
    request_tokens: int | None
    """Tokens of KV cache that the longest request takes, in whole blocks, with all its beams."""
    request_key: str
    """The key of the job file that decides it."""


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


@dataclass(frozen=True)
class Room:
    """What one rank of a layout takes, and what that leaves for the KV cache."""

    parallel: Parallel
    weights: int
    """Bytes on the rank that has most."""
    kv_per_token: int
    """Bytes of one token's keys and values on one rank."""
    buffers: Buffers
    capacity: int | None
    """Bytes that a rank may use; ``None``: neither the profile nor the job file says."""
    cache: int | None
    """Bytes for the KV cache; negative if the rest alone does not fit."""
    tokens: int | None
    """Tokens that the KV cache holds."""
    requests: int | None
    """Requests of the longest length that these are."""


@dataclass(frozen=True)
class MemoryPlan:
    """The planner's answer; sizes are in bytes."""

    family: str
    """Family of models whose matrices were added up."""
    parameters: int
    """Of the whole model."""
    dtype: str
    """Of activations and of weights that are not quantized."""
    limits: Limits
    room: Room
    fraction: float
    """Share of what is free after loading that the KV cache may take."""
    verdict: Verdict
    sentence: str
    remedy: str | None
    suggestion: Parallel | None
    """The smallest layout that holds what this one cannot."""


def parallel_of(engine: Engine) -> Parallel:
    """Return the layout that the job file asks for."""
    tensor = engine.tensor_parallel
    expert = engine.moe_expert_parallel or tensor // (engine.moe_tensor_parallel or tensor)
    return Parallel(tensor, engine.pipeline_parallel, engine.context_parallel, max(expert, 1))


def plan_memory(
    job: JobFile,
    cluster: ClusterProfile,
    config: Config,
    release: Release | None = None,
    model: MemoryModel = MemoryModel(),  # noqa: B008 (immutable)
    stored: int | None = None,
) -> MemoryPlan:
    """Sum up the memory of a job on a cluster, for a model with the ``config.json`` given.

    The defaults are those of ``release`` (``None``: of the newest); ``model`` is how the backend uses memory.
    ``stored`` is the size of the checkpoint's weights, which then needs no sum over its matrices.
    Raises UnknownModel if there is no sum for this kind of model.
    """
    shape = read_shape(config, rough=stored is not None)
    # TensorRT-LLM computes auto in the type of the weights, but never in float32.
    own = "bfloat16" if shape.dtype == "bfloat16" else "float16"
    dtype = own if job.engine.dtype in (None, "auto") else str(job.engine.dtype)
    # 0.9 of what is free, 0.85 before release 0.8: upstream's own default.
    default = 0.9 if release is None or release.at_least("0.8") else 0.85
    fraction = job.kv_cache.free_gpu_memory_fraction or default
    limits = _limits(job, shape, release, model)
    planner = _Planner(job, cluster, shape, release, model, stored, dtype, fraction, limits)
    room = planner.room(parallel_of(job.engine))
    verdict, sentence, remedy = planner.judge(room)
    suggestion = planner.suggest() if verdict in ("warn", "fail") else None
    if suggestion is not None:
        layout = f"engine.tensor_parallel {suggestion.tensor}"
        layout += f" and engine.pipeline_parallel {suggestion.pipeline}" if suggestion.pipeline > 1 else ""
        remedy = f"set {layout}; or {remedy}" if remedy else f"set {layout}"
    return MemoryPlan(
        family=shape.family,
        parameters=shape.parameters,
        dtype=dtype,
        limits=limits,
        room=room,
        fraction=fraction,
        verdict=verdict,
        sentence=sentence,
        remedy=remedy,
        suggestion=suggestion,
    )


def _limits(job: JobFile, shape: ModelShape, release: Release | None, model: MemoryModel) -> Limits:
    def default(option: str) -> int | None:
        return None if release is None else release.build_default(option)

    engine, companion, beams = job.engine, job.companion, job.engine.max_beam_width or 1
    batch = engine.max_batch_size or default("--max_batch_size")
    longest, key = engine.max_seq_len, "engine.max_seq_len"
    benchmark = companion.benchmark if companion.enabled else None
    if longest is None and engine.max_input_len is not None and benchmark is not None:
        longest, key = engine.max_input_len + benchmark.max_tokens, "companion.benchmark.max_tokens"
    elif longest is None and (outputs := default("--max_output_len")) is not None:  # releases before 0.11
        longest = (engine.max_input_len or default("--max_input_len") or 0) + outputs
    elif longest is None:
        longest = default("--max_seq_len") or shape.longest
    if longest is not None:
        longest = min(longest, max(job.kv_cache.max_attention_window or [longest]))
        block = engine.tokens_per_block or default("--tokens_per_block") or 64
        longest = -(-longest // block) * block * beams
    steps = engine.max_num_tokens or default("--max_num_tokens") or 8192
    if not model.fills_memory and batch is not None and longest is not None:
        steps = min(steps, batch * longest)
    return Limits(batch, beams, steps, longest, key)


def _weight_bytes(quantization: Quantization, plain: int) -> float:
    """Return the bytes of one weight in a layer's matrices, with the scales of its group.

    As TensorRT-LLM's quantized layers hold them (``quantization/layers.py``): 16 bits for each group of AWQ
    and QServe, and zeros besides for GPTQ; 8 bits for each 16 inputs of NVFP4. Scales of whole outputs are
    less than a thousandth.
    """
    group = quantization.awq_block_size or quantization.group_size or 128
    method, bits = str(quantization.method), quantization.auto_bits
    if method in ("fp8", "fp8_rowwise", "int8_sq", "int8_wo"):
        return 1
    if method in ("int4_awq", "w4a8_awq", "w4a8_qserve_per_group"):
        return 0.5 + 2 / group
    if method == "auto" and bits:
        return bits / 8
    formats = {"int4_wo": 0.5, "w4a8_qserve_per_channel": 0.5, "nvfp4": 0.5 + 1 / 16}
    return 0.5 + 4 / group if method == "int4_gptq" else formats.get(method, plain)


@dataclass(frozen=True)
class _Planner:
    """One job and one model; layouts may be tried."""

    job: JobFile
    cluster: ClusterProfile
    shape: ModelShape
    release: Release | None
    model: MemoryModel
    stored: int | None
    dtype: str
    fraction: float
    limits: Limits

    def room(self, parallel: Parallel) -> Room:
        """Return what the layout takes and leaves."""
        shape, weights, buffers = self.shape, self._weights(parallel), self._buffers(parallel)
        # A head at least is on each rank: with more ranks than KV heads the heads are repeated
        # (gptJsonConfig.cpp: max(numKvHeads / (tp * cp), 1)).
        heads = -(-shape.kv_heads // (parallel.tensor * parallel.context))
        element = 1 if self.job.engine.quantization.kv_cache in ("int8", "fp8") else _BYTES[self.dtype]
        per_token = -(-shape.layers // parallel.pipeline) * 2 * heads * shape.head_size * element
        capacity, longest = self._capacity(), self.limits.request_tokens
        left = None if capacity is None else capacity - weights - buffers.total
        tokens = self._tokens(left, per_token)
        cache = None if tokens is None else tokens * per_token
        if left is not None and left < 0:
            tokens, cache = 0, left
        requests = None if tokens is None or longest is None else tokens // longest
        return Room(parallel, weights, per_token, buffers, capacity, cache, tokens, requests)

    def _weights(self, parallel: Parallel) -> int:
        """Return the bytes of weights on the rank that has most of them.

        A head that is tied to the embedding takes memory of its own when only one of the two is cut, or when
        they are on different stages.
        """
        if self.stored is not None:
            return round(self.stored / (parallel.tensor * parallel.pipeline))
        engine, shape, plain = self.job.engine, self.shape, _BYTES[self.dtype]
        layer = shape.layer(parallel.tensor, parallel.expert)
        each = layer.matrices * _weight_bytes(engine.quantization, plain) + layer.vectors * plain
        layers = -(-shape.layers // parallel.pipeline) * (each + layer.router * 4)
        # Before 0.16 the conversion shares them only when asked (--use_embedding_sharing).
        shares = engine.embedding_sharing
        if shares is None:
            shares = self.release is None or self.release.at_least("0.16")
        is_cut = bool(engine.parallel_embedding)
        embedding = shape.table * plain / (parallel.tensor if is_cut else 1)
        # The vocabulary is padded to a multiple of the ranks (pad_vocab_size).
        head = -(-shape.vocabulary // parallel.tensor) * shape.hidden * plain
        norm = shape.hidden * plain
        if parallel.pipeline > 1:
            largest = layers + max(embedding, head + norm)
        elif shape.tied and shares and (parallel.tensor == 1 or is_cut):
            largest = layers + embedding + norm
        else:
            largest = layers + embedding + head + norm
        percent = self.job.repository.gpu_weights_percent
        return round(largest * (percent if engine.weight_streaming and percent is not None else 1))

    def _buffers(self, parallel: Parallel) -> Buffers:
        limits, shape, on_gpu = self.limits, self.shape, bool(self.cluster.gpus_per_node)
        rows = min((limits.batch or 1) * limits.beams, limits.step_tokens)
        wide = _HIDDEN_STATES * shape.hidden + shape.wide * shape.active / parallel.tensor
        # The head computes the last token of each request only, unless all logits are gathered.
        head_rows = limits.step_tokens if self.job.engine.gather_context_logits else rows
        head = head_rows * shape.vocabulary / parallel.tensor
        elements = limits.step_tokens * wide * self.model.activations + head
        return Buffers(
            activations=round(elements * _BYTES[self.dtype]) + (_WORKSPACE if on_gpu else 0),
            logits=rows * shape.vocabulary * 4 * self.model.logit_copies,
            context=_GPU_CONTEXT if on_gpu else _PROCESS,
        )

    def _capacity(self) -> int | None:
        """Return the bytes of one rank: of its GPU, or of its share of a node without GPUs."""
        serve = self.job.serve
        if self.cluster.gpus_per_node:
            memory, share = self.cluster.gpu_memory_gib, self.job.repository.instances
        else:
            memory = serve.memory_gib_per_node
            share = max(serve.instances * self.job.engine.world_size // (serve.nodes or 1), 1)
        return None if memory is None else round(memory * GIB / share)

    def _tokens(self, left: int | None, per_token: int) -> int | None:
        """Return the tokens of the KV cache: the least of what memory, settings and batch give."""
        limits, counts = self.limits, list[int]()
        is_paged = self.model.fills_memory and self.job.engine.kv_cache_type != "continuous"
        share = self.fraction if is_paged or self.cluster.gpus_per_node else 1.0
        if left is not None:
            counts.append(max(int(left * share / per_token), 0))
        if not is_paged and limits.batch is not None and limits.request_tokens is not None:
            counts.append(limits.batch * limits.request_tokens)  # what a full batch can use, and no more
        if self.job.kv_cache.max_tokens is not None:
            counts.append(self.job.kv_cache.max_tokens)
        return min(counts, default=None)

    def judge(self, room: Room) -> tuple[Verdict, str, str | None]:
        """Return whether the layout holds what the job file promises, a sentence and a remedy."""
        if room.capacity is None:
            if self.cluster.gpus_per_node:
                where, remedy = "gpu or gpu_memory_gib", "set gpu in the profile, e.g. to h100-80gb"
            else:
                where, remedy = "serve.memory_gib_per_node", "set serve.memory_gib_per_node"
            return "unknown", f"how many tokens fit depends on {where}, which is not set", remedy
        taken = f"weights {gib(room.weights)} and buffers of about {gib(room.buffers.total)}"
        if room.cache is None or room.cache < 0:
            return "fail", f"{taken} do not fit into {gib(room.capacity)} a rank", "quantize the model"
        longest, requests = self.limits.request_tokens, room.requests
        if longest is None or requests is None:
            return "ok", f"{room.tokens} tokens fit beside {taken}", None
        if requests == 0:
            sentence = f"{room.tokens} tokens fit beside {taken}, but one request takes {longest}"
            return "fail", sentence, f"lower {self.limits.request_key}"
        # The release's own default is no promise of the job file, and requests may wait: no warning.
        batch = self.job.engine.max_batch_size
        if batch is not None and requests < batch:
            fits = f"{room.tokens} tokens fit: {requests} requests of {longest}"
            remedy = f"lower engine.max_batch_size to {requests}, or {self.limits.request_key}"
            return "warn", f"{fits}, but a batch has {batch}; the others wait", remedy
        return "ok", f"{room.tokens} tokens fit, {requests} requests of {longest}", None

    def suggest(self) -> Parallel | None:
        """Return the smallest larger layout that holds a full batch; if the job file names none, one request.

        Tensor parallel within a node, pipeline parallel over nodes.
        """
        widest, given = max(self.cluster.gpus_per_node, 1), parallel_of(self.job.engine)
        larger = [
            Parallel(tensor, pipeline, given.context, given.expert if tensor % given.expert == 0 else 1)
            for tensor in (1, 2, 4, 8, 16, 32, 64)
            for pipeline in self.model.pipelines
            if tensor <= widest
            and self.shape.heads % tensor == 0
            and self.shape.layers % pipeline == 0
            and tensor * pipeline > given.tensor * given.pipeline
        ]
        for parallel in sorted(larger, key=lambda item: (item.tensor * item.pipeline, item.pipeline)):
            requests = self.room(parallel).requests
            if requests is not None and requests >= (self.job.engine.max_batch_size or 1):
                return parallel
        return None


def gib(size: float) -> str:
    """Format bytes as GiB."""
    return f"{size / GIB:.2f} GiB" if size < 100 * GIB else f"{size / GIB:.0f} GiB"
