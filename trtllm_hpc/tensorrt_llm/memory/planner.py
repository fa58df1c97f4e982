"""The memory planner: what a model takes of each rank's memory, and how many tokens fit beside it.

Weights and KV cache are sums over the model's matrices and layers. What else a rank takes is an estimate,
fitted to logs that users have published; docs/explanation/memory.md sets them beside these formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.memory.rank_memory import (
    BYTES,
    Buffers,
    Limits,
    MemoryModel,
    Parallel,
    Sizes,
    format_of,
    parallel_of,
)
from trtllm_hpc.tensorrt_llm.memory.shapes import Config, ModelShape, read_shape
from trtllm_hpc.tensorrt_llm.releases.release import Release

GIB = 2**30
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
    planner = _Planner(job, cluster, read_shape(config, rough=stored is not None), release, model, stored)
    room = planner.room(parallel_of(job.engine))
    verdict, sentence, remedy = planner.judge(room)
    suggestion = planner.suggest() if verdict in ("warn", "fail") else None
    if suggestion is not None:
        layout = f"engine.tensor_parallel {suggestion.tensor}"
        layout += f" and engine.pipeline_parallel {suggestion.pipeline}" if suggestion.pipeline > 1 else ""
        remedy = f"set {layout}; or {remedy}" if remedy else f"set {layout}"
    return MemoryPlan(
        family=planner.shape.family,
        parameters=planner.shape.parameters,
        dtype=planner.dtype,
        limits=planner.limits,
        room=room,
        fraction=planner.fraction,
        verdict=verdict,
        sentence=sentence,
        remedy=remedy,
        suggestion=suggestion,
    )


class _Planner:
    """One job and one model; layouts may be tried."""

    def __init__(
        self,
        job: JobFile,
        cluster: ClusterProfile,
        shape: ModelShape,
        release: Release | None,
        model: MemoryModel,
        stored: int | None,
    ) -> None:
        self.stored = stored
        self.job = job
        self.cluster = cluster
        self.shape = shape
        self.release = release
        self.model = model
        # TensorRT-LLM computes auto in the type of the weights, but never in float32.
        own = "bfloat16" if shape.dtype == "bfloat16" else "float16"
        self.dtype = own if job.engine.dtype in (None, "auto") else str(job.engine.dtype)
        self.limits = self._limits()
        # 0.9 of what is free, 0.85 before release 0.8: upstream's own default.
        default = 0.9 if release is None or release.at_least("0.8") else 0.85
        self.fraction = job.kv_cache.free_gpu_memory_fraction or default
        sharing = job.serve.instances_per_gpu
        if sharing > 1:
            # Each takes its share of what those before it have left: the last gets least.
            self.fraction *= (1 - self.fraction / sharing) ** (sharing - 1)

    def _limits(self) -> Limits:
        job, engine = self.job, self.job.engine
        batch = engine.max_batch_size or self._default("--max_batch_size")
        longest, key = self._longest()
        windows = job.kv_cache.max_attention_window
        if windows and longest is not None:
            longest = min(longest, max(windows))
        if longest is not None:
            block = engine.tokens_per_block or self._default("--tokens_per_block") or 64
            longest = -(-longest // block) * block * (engine.max_beam_width or 1)
        steps = engine.max_num_tokens or self._default("--max_num_tokens") or 8192
        if not self.model.fills_memory and batch is not None and longest is not None:
            steps = min(steps, batch * longest)
        has_encoder = self.shape.encoder is not None
        share = 1 - (job.kv_cache.cross_kv_cache_fraction or 0.5) if has_encoder else 1.0
        return Limits(batch, engine.max_beam_width or 1, steps, longest, key, share)

    def _longest(self) -> tuple[int | None, str]:
        """Tokens of the longest request, and the key that says so."""
        engine, companion = self.job.engine, self.job.companion
        if engine.max_seq_len is not None:
            return engine.max_seq_len, "engine.max_seq_len"
        benchmark = companion.benchmark if companion.enabled else None
        if engine.max_input_len is not None and benchmark is not None:
            return engine.max_input_len + benchmark.max_tokens, "companion.benchmark.max_tokens"
        inputs, outputs = self._default("--max_input_len"), self._default("--max_output_len")
        if outputs is not None:  # releases before 0.11
            return (engine.max_input_len or inputs or 0) + outputs, "engine.max_seq_len"
        return self._default("--max_seq_len") or self.shape.longest, "engine.max_seq_len"

    def _default(self, option: str) -> int | None:
        return self.release.build_default(option) if self.release is not None else None

    def room(self, parallel: Parallel) -> Room:
        """What the layout takes and leaves."""
        weights = self._weights(parallel)
        # A head at least is on each rank: with more ranks than KV heads the heads are repeated
        # (gptJsonConfig.cpp: max(numKvHeads / (tp * cp), 1)).
        stack, cache_type = self.shape.decoder, self.job.engine.quantization.kv_cache
        layers = -(-stack.layers // parallel.pipeline)
        heads = max(-(-stack.kv_heads // (parallel.tensor * parallel.context)), 1)
        element = 1 if cache_type in ("int8", "fp8") else BYTES[self.dtype]
        per_token = layers * 2 * heads * stack.head_size * element
        buffers = self._buffers(parallel)
        capacity = self._capacity()
        left = None if capacity is None else capacity - weights - buffers.total
        tokens, cache = self._tokens(left, per_token)
        longest = self.limits.request_tokens
        requests = None if tokens is None or longest is None else tokens // longest
        return Room(parallel, weights, per_token, buffers, capacity, cache, tokens, requests)

    def _weights(self, parallel: Parallel) -> int:
        """Bytes of weights on the rank that has most of them.

        A head that is tied to the embedding takes memory of its own when only one of the two is cut, or when
        they are on different stages.
        """
        if self.stored is not None:
            return round(self.stored / (parallel.tensor * parallel.pipeline))
        engine, shape = self.job.engine, self.shape
        # Before 0.16 the conversion shares them only when asked (--use_embedding_sharing).
        shares = engine.embedding_sharing
        if shares is None:
            shares = self.release is None or self.release.at_least("0.16")
        is_cut = bool(engine.parallel_embedding)
        is_shared = shape.tied and shares and (parallel.tensor == 1 or is_cut)
        sizes = Sizes(parallel, BYTES[self.dtype], format_of(engine.quantization, self.dtype))
        stages = []
        for stage in range(parallel.pipeline):
            is_first, is_last = stage == 0, stage == parallel.pipeline - 1
            size = sizes.layers(shape.decoder)
            if is_first:
                size += sizes.tables(shape.decoder.tables, is_cut=is_cut)
            if is_last:
                size += shape.decoder.last_vectors * sizes.plain
                size += 0 if is_shared and is_first else sizes.matrix(shape.head)
            stages.append(size)
        largest = max(stages)
        if shape.encoder is not None:
            # The encoder of T5 is an engine of its own on every rank, with an embedding of its own.
            tables = sizes.tables(shape.encoder.tables, is_cut=is_cut)
            largest += sizes.layers(shape.encoder) + tables
        percent = self.job.repository.gpu_weights_percent
        total = round(largest)
        return round(total * percent) if engine.weight_streaming and percent is not None else total

    def _buffers(self, parallel: Parallel) -> Buffers:
        """The estimate for one rank."""
        limits, shape, on_gpu = self.limits, self.shape, bool(self.cluster.gpus_per_node)
        steps = limits.step_tokens or 0
        rows = min((limits.batch or 1) * limits.beams, steps) if steps else limits.batch or 1
        wide = _HIDDEN_STATES * shape.decoder.hidden + shape.decoder.wide / parallel.tensor
        # The head computes the last token of each request only, unless all logits are gathered.
        head_rows = steps if self.job.engine.gather_context_logits else rows
        head = head_rows * shape.vocabulary / parallel.tensor
        activations = round((steps * wide * self.model.activations + head) * BYTES[self.dtype])
        return Buffers(
            activations=activations + (_WORKSPACE if on_gpu else 0),
            logits=rows * shape.vocabulary * 4 * self.model.logit_copies,
            context=_GPU_CONTEXT if on_gpu else _PROCESS,
        )

    def _capacity(self) -> int | None:
        """Bytes of one rank: of its GPU, or of its share of a node without GPUs."""
        if self.cluster.gpus_per_node:
            memory = self.cluster.gpu_memory_gib
            share = self.job.repository.instances * self.job.serve.instances_per_gpu
            return None if memory is None else round(memory * GIB / share)
        per_node, nodes = self.job.serve.memory_gib_per_node, self.job.serve.nodes or 1
        ranks = max(self.job.serve.instances * self.job.engine.world_size // nodes, 1)
        return None if per_node is None else round(per_node * GIB / ranks)

    def _tokens(self, left: int | None, per_token: int) -> tuple[int | None, int | None]:
        """Tokens of the KV cache, and their bytes: the least of what memory, settings and batch give."""
        bound = self.job.kv_cache.max_tokens
        wanted = self.limits.whole_batch
        is_paged = self.model.fills_memory and self.job.engine.kv_cache_type != "continuous"
        share = self.fraction if is_paged or self.cluster.gpus_per_node else 1.0
        of_decoder = self.limits.decoder_share if is_paged else 1.0
        tokens = None if left is None else max(int(left * share * of_decoder / per_token), 0)
        if not is_paged:  # these take what a full batch can use, and no more
            tokens = wanted if tokens is None else min(tokens, wanted or tokens)
        if bound is not None:
            tokens = bound if tokens is None else min(tokens, bound)
        if left is not None and left < 0:
            return 0, left
        return tokens, None if tokens is None else tokens * per_token

    def judge(self, room: Room) -> tuple[Verdict, str, str | None]:
        """Whether the layout holds what the job file promises, as a sentence and a remedy."""
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
        """The smallest layout that holds a full batch; if the batch is not the job file's, one request."""
        asked = self.job.engine.max_batch_size
        for parallel in self._layouts():
            room = self.room(parallel)
            if room.requests is not None and room.requests >= (asked or 1):
                return parallel
        return None

    def _layouts(self) -> list[Parallel]:
        """Layouts larger than the job's: tensor parallel within a node, pipeline parallel over nodes."""
        widest = max(self.cluster.gpus_per_node, 1)
        stack, given = self.shape.decoder, parallel_of(self.job.engine)
        heads = stack.matrices[0].outputs // stack.head_size
        found = [
            Parallel(tensor, pipeline, given.context, given.expert if tensor % given.expert == 0 else 1)
            for tensor in (1, 2, 4, 8, 16, 32, 64)
            for pipeline in self.model.pipelines
            if tensor <= widest and heads % tensor == 0 and stack.layers % pipeline == 0
        ]
        size = given.tensor * given.pipeline
        larger = [item for item in found if item.tensor * item.pipeline > size]
        return sorted(larger, key=lambda item: (item.tensor * item.pipeline, item.pipeline))


def gib(size: float) -> str:
    """Format bytes as GiB."""
    return f"{size / GIB:.2f} GiB" if size < 100 * GIB else f"{size / GIB:.0f} GiB"
