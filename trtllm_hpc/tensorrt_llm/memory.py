"""The memory planner: the memory of each rank that a model needs, and the tokens that fit beside it.

Weights and KV cache are sums over the model's matrices and layers, split as TensorRT-LLM splits them
(``ColumnLinear``, ``RowLinear``, ``Attention``, ``MOE``). A rank's other memory is an estimate, fitted to
logs that users have published; docs/explanation/memory.md compares these logs with the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.engine import Engine
from trtllm_hpc.config.job import JobFile

if TYPE_CHECKING:
    from trtllm_hpc.tensorrt_llm.releases.release import Release

GIB = 2**30
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element of each type."""
_WEIGHT_BYTES = {
    **dict.fromkeys(("fp8", "fp8_rowwise", "int8_sq", "int8_wo"), 1.0),
    **dict.fromkeys(("int4_awq", "w4a8_awq"), 0.5 + 2 / 128),
    **{"int4_wo": 0.5, "int4_gptq": 0.5 + 4 / 128, "nvfp4": 0.5 + 1 / 16},
}
"""Bytes of a quantized weight in a layer, including its share of the scales (``quantization/layers.py``)."""
_HIDDEN_STATES = 3
"""Rows of the hidden size that a token needs at once, beside those of the MLP."""
_WORKSPACE = 32 * 2**20
"""Bytes of cuBLAS's workspace."""
_GPU_CONTEXT = round(0.75 * GIB)
"""Bytes of CUDA's context, kernels, NCCL and Triton's own pool on a GPU."""
_PROCESS = round(0.5 * GIB)
"""Bytes of Python and PyTorch, if a rank computes in the node's memory."""

Config = Mapping[str, Any]
Verdict = Literal["ok", "warn", "fail", "unknown"]
_MOE = ("mixtral", "qwen3_moe")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", *_MOE)
"""Values of ``model_type`` whose weights can be counted; for others the checkpoint's size is needed."""


@dataclass(frozen=True)
class MemoryModel:
    """A backend's use of a rank's memory."""

    logit_copies: int = 7
    """Copies of a request's row of logits, in float32, in runtime and decoder."""
    activations: int = 1
    """Memory for activations, as a multiple of TensorRT's single arena."""
    fills_memory: bool = True
    """Whether the KV cache takes all remaining memory, and not only what a full batch can use."""
    pipelines: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Sizes of ``engine.pipeline_parallel`` that can be suggested."""


@dataclass(frozen=True)
class Parallel:
    """The parallel layout: how the ranks share the model."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1


def parallel_of(engine: Engine) -> Parallel:
    """Return the layout in the job file."""
    tensor = engine.tensor_parallel
    expert = engine.moe_expert_parallel or tensor // (engine.moe_tensor_parallel or tensor)
    return Parallel(tensor, engine.pipeline_parallel, engine.context_parallel, max(expert, 1))


# The model --------------------------------------------------------------------------------


class UnknownModel(ValueError):
    """The planner cannot count this model's parameters; the message says why in one sentence."""


@dataclass(frozen=True)
class ModelShape:
    """A model's shape: equal decoder layers between an embedding and a head, without norms and biases."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    wide: int
    """Inner size of the MLP, or of one expert."""
    vocabulary: int
    """Number of tokens in the vocabulary."""
    tied: bool
    """Whether the head shares the weights of the token embedding."""
    dtype: str
    """Type that TensorRT-LLM uses for ``auto``: the type of the stored weights, but float16 for float32."""
    longest: int | None
    """Largest number of tokens that the model's positions allow."""
    experts: int = 0
    """Experts in each layer; 0: a dense model."""
    active: int = 1
    """Experts that compute one token."""

    def matrices(self, parallel: Parallel = Parallel()) -> float:
        """Return the number of weights of a layer on a rank, without the router of the experts.

        KV heads are not split: they are repeated if there are more ranks than KV heads.
        """
        tensor, expert = parallel.tensor, parallel.expert
        queries = -(-self.heads * self.head_size // tensor)
        keys = 2 * -(-self.kv_heads // tensor) * self.head_size
        attention = self.hidden * (queries + keys + self.heads * self.head_size / tensor)
        split = max(tensor // expert, 1)  # moe_tp * moe_ep is the tensor parallel size
        mlp = self.hidden * (2 * -(-self.wide // split) + self.wide / split)
        return attention + mlp * -(-(self.experts or 1) // expert)

    @property
    def table(self) -> int:
        """Number of parameters of the embedding, which is also that of the head."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Number of parameters of the whole model; tied weights count once."""
        layer = round(self.matrices()) + self.experts * self.hidden
        return self.layers * layer + self.table * (1 if self.tied else 2)


def read_shape(config: Config, *, rough: bool = False) -> ModelShape:
    """Return the shape of the model that a ``config.json`` describes.

    With ``rough`` any family is accepted, but the shape is right only for KV cache and activations. Raises
    UnknownModel for an unknown family, or if a field is missing.
    """
    family = str(config.get("model_type"))
    if not rough and family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UnknownModel(f"no sum for models of type {family!r} (there is one for {known})")
    try:
        return _shape(config, family, rough=rough)
    except KeyError as missing:
        raise UnknownModel(f"its config.json has no {missing}") from None
    except (TypeError, ZeroDivisionError):
        raise UnknownModel("its config.json has sizes that are not positive numbers") from None


def _shape(config: Config, family: str, *, rough: bool) -> ModelShape:
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    size = _count(config, "head_dim", default=256 if family == "gemma" else hidden // heads)
    kv_heads = _count(config, "num_key_value_heads", default=heads)
    if config.get("kv_lora_rank"):
        # With MLA every rank keeps one vector for each token and layer.
        kv_heads, size = 1, (_count(config, "kv_lora_rank") + _count(config, "qk_rope_head_dim")) // 2
    is_moe = family in _MOE
    widths = ("moe_intermediate_size", "intermediate_size")
    dtype = str(config.get("torch_dtype", config.get("dtype"))).removeprefix("torch.")
    return ModelShape(
        layers=_count(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        wide=_count(config, *(widths if is_moe else widths[::-1]), default=4 * hidden if rough else None),
        vocabulary=_count(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", family in ("gemma", "gemma2"))),
        dtype="bfloat16" if dtype == "bfloat16" else "float16",
        longest=config.get("max_position_embeddings"),
        experts=_count(config, "num_local_experts", "num_experts") if is_moe else 0,
        active=config.get("num_experts_per_tok", 2) if is_moe else 1,
    )


def _count(config: Config, *names: str, default: int | None = None) -> int:
    """Return the value of the first key that is set, which must be a positive number."""
    for name in names:
        if config.get(name) is not None:
            value = config[name]
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UnknownModel(f"{name} in config.json is {value!r}, and must be a whole number above 0")
            return value
    if default is None:
        raise KeyError(names[0])
    return default


# The plan ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of a rank in a layout, and the rest for the KV cache; sizes are in bytes."""

    parallel: Parallel
    parameters: int
    """Number of parameters of the whole model."""
    dtype: str
    """Type of activations and of weights that are not quantized."""
    batch: int | None
    """Largest number of requests that are computed at once."""
    beams: int
    """Beam width."""
    step_tokens: int
    """Largest number of tokens that a step computes."""
    request_tokens: int | None
    """Tokens of KV cache for the longest request, in whole blocks, with all its beams."""
    weights: int
    """Bytes of weights on the rank with the most weights."""
    activations: int
    """Estimated bytes of a step's activations."""
    logits: int
    """Estimated bytes of a full batch's logits, with the decoder's copies."""
    context: int
    """Estimated bytes of CUDA and the libraries, or of the process."""
    kv_per_token: int
    """Bytes of a token's keys and values on one rank."""
    fraction: float
    """Share of the memory free after loading that the KV cache may take."""
    capacity: int | None
    """Bytes that a rank may use; ``None``: set neither in the profile nor in the job file."""
    cache: int | None
    """Bytes for the KV cache; negative if the rest alone does not fit."""
    tokens: int | None
    """Number of tokens that fit into the KV cache."""
    requests: int | None
    """Number of requests of the longest length that fit into the KV cache."""
    verdict: Verdict = "unknown"
    sentence: str = ""
    """The verdict in words."""
    remedy: str | None = None
    suggestion: Parallel | None = None
    """The smallest layout that is large enough, if this one is not."""

    @property
    def buffers(self) -> int:
        """Bytes of everything except weights and KV cache."""
        return self.activations + self.logits + self.context


def plan_memory(
    job: JobFile,
    cluster: ClusterProfile,
    config: Config,
    release: Release | None = None,
    model: MemoryModel = MemoryModel(),
    stored: int | None = None,
) -> MemoryPlan:
    """Return the memory plan of a job on a cluster.

    Args:
        config: the model's ``config.json``.
        release: release whose defaults apply; ``None``: built-in defaults.
        model: how the backend uses memory.
        stored: size of the checkpoint's weights in bytes; ``None``: count the model's matrices.

    Raises:
        UnknownModel: the planner cannot count this kind of model.
    """
    planner = _Planner(job, cluster, read_shape(config, rough=stored is not None), release, model, stored)
    plan = planner.room(parallel_of(job.engine))
    verdict, sentence, remedy = planner.judge(plan)
    suggestion = planner.suggest() if verdict in ("warn", "fail") else None
    if suggestion is not None:
        layout = f"engine.tensor_parallel {suggestion.tensor}"
        layout += f" and engine.pipeline_parallel {suggestion.pipeline}" if suggestion.pipeline > 1 else ""
        remedy = f"set {layout}; or {remedy}" if remedy else f"set {layout}"
    return replace(plan, verdict=verdict, sentence=sentence, remedy=remedy, suggestion=suggestion)


@dataclass(frozen=True)
class _Planner:
    """Plans the memory of one job and one model for different layouts."""

    job: JobFile
    cluster: ClusterProfile
    shape: ModelShape
    release: Release | None
    model: MemoryModel
    stored: int | None

    def room(self, parallel: Parallel) -> MemoryPlan:
        """Return the plan for a layout, without a verdict."""
        job, shape, on_gpu = self.job, self.shape, bool(self.cluster.gpus_per_node)
        engine = job.engine
        dtype = shape.dtype if engine.dtype in (None, "auto") else str(engine.dtype)
        plain = _BYTES[dtype]
        batch, beams = engine.max_batch_size or self._default("--max_batch_size"), engine.max_beam_width or 1
        longest = self._longest_request(beams)
        steps = engine.max_num_tokens or self._default("--max_num_tokens") or 8192
        if not self.model.fills_memory and batch is not None and longest is not None:
            steps = min(steps, batch * longest)
        weights = self._weights(parallel, plain)
        rows = min((batch or 1) * beams, steps)
        wide = _HIDDEN_STATES * shape.hidden + shape.wide * shape.active / parallel.tensor
        # The head computes only the last token of each request, unless all logits are gathered.
        head = (steps if engine.gather_context_logits else rows) * shape.vocabulary / parallel.tensor
        activations = round((steps * wide * self.model.activations + head) * plain)
        activations += _WORKSPACE if on_gpu else 0
        logits = rows * shape.vocabulary * 4 * self.model.logit_copies
        context = _GPU_CONTEXT if on_gpu else _PROCESS
        # Each rank has at least one KV head: with more ranks than KV heads the heads are repeated
        # (gptJsonConfig.cpp: max(numKvHeads / (tp * cp), 1)).
        kv_heads = -(-shape.kv_heads // (parallel.tensor * parallel.context))
        element = 1 if engine.quantization.kv_cache in ("int8", "fp8") else plain
        per_token = -(-shape.layers // parallel.pipeline) * 2 * kv_heads * shape.head_size * element
        fraction = job.kv_cache.free_gpu_memory_fraction or 0.9  # upstream's own default
        if on_gpu:
            memory, share = self.cluster.gpu_memory_gib, job.repository.instances
        else:  # a rank has its share of the node
            wanted = job.serve.memory_gib_per_node
            memory = None if wanted == "all" else wanted
            share = max(job.serve.instances * engine.world_size // (job.serve.nodes or 1), 1)
        capacity = None if memory is None else round(memory * GIB / share)
        left = None if capacity is None else capacity - weights - activations - logits - context
        counts = [] if job.kv_cache.max_tokens is None else [job.kv_cache.max_tokens]
        is_paged = self.model.fills_memory and engine.kv_cache_type != "continuous"
        if left is not None:
            counts.append(max(int(left * (fraction if is_paged or on_gpu else 1) / per_token), 0))
        if not is_paged and batch is not None and longest is not None:
            counts.append(batch * longest)  # what a full batch can use, and no more
        tokens = min(counts, default=None)
        cache = None if tokens is None else tokens * per_token
        if left is not None and left < 0:
            tokens, cache = 0, left
        return MemoryPlan(
            parallel=parallel,
            parameters=shape.parameters,
            dtype=dtype,
            batch=batch,
            beams=beams,
            step_tokens=steps,
            request_tokens=longest,
            weights=weights,
            activations=activations,
            logits=logits,
            context=context,
            kv_per_token=per_token,
            fraction=fraction,
            capacity=capacity,
            cache=cache,
            tokens=tokens,
            requests=None if tokens is None or longest is None else tokens // longest,
        )

    def _default(self, option: str) -> int | None:
        return None if self.release is None else self.release.build_default(option)

    def _longest_request(self, beams: int) -> int | None:
        engine, longest = self.job.engine, self.job.engine.max_seq_len
        if longest is None and (outputs := self._default("--max_output_len")) is not None:  # before 0.11
            longest = (engine.max_input_len or self._default("--max_input_len") or 0) + outputs
        elif longest is None:
            longest = self._default("--max_seq_len") or self.shape.longest
        if longest is None:
            return None
        longest = min(longest, max(self.job.kv_cache.max_attention_window or [longest]))
        block = engine.tokens_per_block or self._default("--tokens_per_block") or 64
        return -(-longest // block) * block * beams

    def _weights(self, parallel: Parallel, plain: int) -> int:
        """Return the bytes of weights on the rank that has the most.

        A tied head needs memory of its own if it is split, or on another pipeline stage than the embedding.
        """
        if self.stored is not None:
            return round(self.stored / (parallel.tensor * parallel.pipeline))
        shape, tensor = self.shape, parallel.tensor
        each = shape.matrices(parallel) * _WEIGHT_BYTES.get(str(self.job.engine.quantization.method), plain)
        # TensorRT-LLM keeps the whole router in float32 on every rank.
        layers = -(-shape.layers // parallel.pipeline) * (each + shape.experts * shape.hidden * 4)
        embedding = shape.table * plain
        # The vocabulary is padded to a multiple of the ranks (pad_vocab_size).
        head = -(-shape.vocabulary // tensor) * shape.hidden * plain
        if parallel.pipeline > 1:
            return round(layers + max(embedding, head))
        return round(layers + embedding + (0 if shape.tied and tensor == 1 else head))

    def judge(self, plan: MemoryPlan) -> tuple[Verdict, str, str | None]:
        """Return the verdict on whether the job file's requests fit, a sentence and a remedy."""
        if plan.capacity is None:
            if self.cluster.gpus_per_node:
                where, remedy = "gpu or gpu_memory_gib", "set gpu in the profile, e.g. to h100-80gb"
            else:
                where, remedy = "serve.memory_gib_per_node", "set serve.memory_gib_per_node to a number"
            return "unknown", f"how many tokens fit depends on {where}, which is not set", remedy
        taken = f"weights {gib(plan.weights)} and buffers of about {gib(plan.buffers)}"
        if plan.cache is None or plan.cache < 0:
            return "fail", f"{taken} do not fit into {gib(plan.capacity)} a rank", "quantize the model"
        longest, requests = plan.request_tokens, plan.requests
        if longest is None or requests is None:
            return "ok", f"{plan.tokens} tokens fit beside {taken}", None
        if requests == 0:
            sentence = f"{plan.tokens} tokens fit beside {taken}, but one request takes {longest}"
            return "fail", sentence, "lower engine.max_seq_len"
        # Warn only if the job file sets max_batch_size: the release's default promises nothing, and requests
        # may wait.
        batch = self.job.engine.max_batch_size
        fits = f"{plan.tokens} tokens fit, {requests} requests of {longest}"
        if batch is not None and requests < batch:
            remedy = f"lower engine.max_batch_size to {requests}, or engine.max_seq_len"
            return "warn", f"{fits}, but a batch has {batch}; the others wait", remedy
        return "ok", fits, None

    def suggest(self) -> Parallel | None:
        """Return the smallest larger layout with memory for a full batch; without a batch size, one request.

        Layouts are tensor parallel within a node and pipeline parallel over nodes.
        """
        widest, current = max(self.cluster.gpus_per_node, 1), parallel_of(self.job.engine)
        larger = [
            Parallel(tensor, pipeline, current.context, current.expert if tensor % current.expert == 0 else 1)
            for tensor in (1, 2, 4, 8, 16, 32, 64)
            for pipeline in self.model.pipelines
            if tensor <= widest
            and self.shape.heads % tensor == 0
            and self.shape.layers % pipeline == 0
            and tensor * pipeline > current.tensor * current.pipeline
        ]
        for parallel in sorted(larger, key=lambda item: (item.tensor * item.pipeline, item.pipeline)):
            requests = self.room(parallel).requests
            if requests is not None and requests >= (self.job.engine.max_batch_size or 1):
                return parallel
        return None


def gib(size: float) -> str:
    """Format bytes as GiB."""
    return f"{size / GIB:.2f} GiB" if size < 100 * GIB else f"{size / GIB:.0f} GiB"
