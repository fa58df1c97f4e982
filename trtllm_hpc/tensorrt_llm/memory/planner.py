"""The memory planner: what a model takes of each rank's memory, and how many tokens fit beside it.

Weights and KV cache are sums over the model's matrices and layers; what else a rank takes is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.memory.rank_memory import (
    Buffers,
    Limits,
    MemoryModel,
    Parallel,
    buffers_of,
    cache_bytes_of,
    dtype_of,
    format_of,
    kv_bytes_per_token,
    limits_of,
    parallel_of,
    weight_bytes,
)
from trtllm_hpc.tensorrt_llm.memory.shapes import Config, ModelShape, read_shape
from trtllm_hpc.tensorrt_llm.releases.release import Release

GIB = 2**30

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
) -> MemoryPlan:
    """Sum up the memory of a job on a cluster.

    Args:
        config: the model's ``config.json``.
        release: TensorRT-LLM whose defaults hold; ``None``: the newest.
        model: how the backend uses memory.

    Raises UnknownModel if there is no sum for this kind of model.
    """
    planner = _Planner(job, cluster, read_shape(config), release, model)
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
    ) -> None:
        self.job = job
        self.cluster = cluster
        self.shape = shape
        self.release = release
        self.model = model
        self.dtype = dtype_of(job.engine, shape)
        self.limits = limits_of(job, shape, release, model)
        # 0.9 of what is free, 0.85 before release 0.8: upstream's own default.
        default = 0.9 if release is None or release.at_least("0.8") else 0.85
        self.fraction = job.kv_cache.free_gpu_memory_fraction or default
        sharing = job.serve.instances_per_gpu
        if sharing > 1:
            # Each takes its share of what those before it have left: the last gets least.
            self.fraction *= (1 - self.fraction / sharing) ** (sharing - 1)

    def room(self, parallel: Parallel) -> Room:
        """What the layout takes and leaves."""
        weights = self._weights(parallel)
        per_token = kv_bytes_per_token(self.shape, parallel, cache_bytes_of(self.job.engine, self.dtype))
        on_gpu = bool(self.cluster.gpus_per_node)
        buffers = buffers_of(
            self.shape, parallel, self.limits, self.job.engine, self.dtype, self.model, on_gpu=on_gpu
        )
        capacity = self._capacity()
        left = None if capacity is None else capacity - weights - buffers.total
        tokens, cache = self._tokens(left, per_token)
        longest = self.limits.request_tokens
        requests = None if tokens is None or longest is None else tokens // longest
        return Room(parallel, weights, per_token, buffers, capacity, cache, tokens, requests)

    def _weights(self, parallel: Parallel) -> int:
        engine = self.job.engine
        # Before 0.16 the conversion shares them only when asked (--use_embedding_sharing).
        shares = engine.embedding_sharing
        if shares is None:
            shares = self.release is None or self.release.at_least("0.16")
        total = weight_bytes(
            self.shape,
            parallel,
            self.dtype,
            format_of(engine.quantization, self.dtype),
            shares_embedding=shares,
            parallel_embedding=bool(engine.parallel_embedding),
        )
        percent = self.job.repository.gpu_weights_percent
        return round(total * percent) if engine.weight_streaming and percent is not None else total

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
