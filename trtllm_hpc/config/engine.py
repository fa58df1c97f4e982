"""The job file's sections ``engine``, ``kv_cache`` and ``repository``: the same keys for every release.

The keys of ``kv_cache`` are those of TensorRT-LLM's ``KvCacheConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from trtllm_hpc.config.types import AbsolutePath, AnyText, Count, OneLine, Section, TokenCount

Backend = Literal["reference", "tensorrtllm", "python", "pytorch", "command"]
Parallelism = Annotated[int, Field(ge=1, le=4096)]
Plugin = Literal["auto", "float16", "bfloat16", "float32", "int32", "fp8", "enable", "disable"]

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "reference": {
        "dtype": "float32",
        "max_batch_size": 8,
        "max_input_len": 256,
        "max_seq_len": 512,
        "max_beam_width": 1,
        "tokens_per_block": 64,
    },
    "tensorrtllm": {"dtype": "auto"},
    "python": {"dtype": "auto"},
    "pytorch": {"dtype": "auto"},
    "command": {},
}
"""Defaults of ``engine`` keys by backend. All other keys keep the release's default."""


FRONTENDS: Mapping[str, Literal["openai", "triton"]] = {
    "reference": "triton",
    "tensorrtllm": "triton",
    "python": "triton",
    "pytorch": "openai",
    "command": "openai",
}
"""Default of ``serve.frontend`` by backend."""


class Quantization(Section):
    """Quantization of weights, activations and the KV cache."""

    method: (
        Literal[
            "fp8",
            "fp8_rowwise",
            "nvfp4",
            "int8_sq",
            "int4_awq",
            "w4a8_awq",
            "int4_gptq",
            "int8_wo",
            "int4_wo",
        ]
        | None
    ) = None
    """``convert_checkpoint.py`` does ``fp8_rowwise``, ``int4_gptq``, ``int8_wo`` and ``int4_wo``;
    ``quantize.py --qformat`` does the others."""
    kv_cache: Literal["int8", "fp8"] | None = None
    """Type of cached keys and values."""
    calibration_dataset: AbsolutePath | None = None
    """Local folder of calibration data; TensorRT-LLM's default is a download, which needs internet access."""
    calibration_size: Count | None = None
    """Number of calibration samples."""
    checkpoint: AbsolutePath | None = None
    """Weights already quantized by GPTQ."""


class Lora(Section):
    """LoRA adapters."""

    target_modules: list[OneLine] = Field(default=[])
    """Modules by TensorRT-LLM's names, e.g. ``attn_q``."""
    adapters: list[AbsolutePath] = Field(default=[])
    """Hugging Face adapters that the build converts for clients (``hf_lora_convert.py``)."""
    storage_type: Literal["float16", "bfloat16", "float32"] = "float16"
    """Type of the converted adapters (``hf_lora_convert.py --storage-type``)."""


class RawOptions(Section):
    """Further arguments of TensorRT-LLM's build programs, checked against the release's options."""

    build_py: list[OneLine] = Field(default=[])
    """Arguments of ``build.py``."""
    convert: list[OneLine] = Field(default=[])
    """Arguments of ``convert_checkpoint.py``."""
    quantize: list[OneLine] = Field(default=[])
    """Arguments of ``quantize.py``."""
    build: list[OneLine] = Field(default=[])
    """Arguments of ``trtllm-build``."""


class Engine(Section):
    """How the model is computed. Missing keys have the backend's default, or the release's."""

    backend: Backend = "reference"
    """``tensorrtllm``, ``python``: a TensorRT-LLM engine behind Triton's C++ or Python backend. ``pytorch``:
    TensorRT-LLM's LLM API, without an engine. ``reference``: transformers behind the same Triton models.
    ``command``: the server that ``serve.command`` starts."""
    tensorrt_llm_version: OneLine | None = None
    """Release, e.g. ``0.16.0``; ``None``: from the container image's tag."""
    directory: AbsolutePath | None = None
    """Folder of a finished engine, instead of a build stage."""

    tensor_parallel: Parallelism = 1
    """Ranks that split each layer. World size: tensor * pipeline * context parallel."""
    pipeline_parallel: Parallelism = 1
    """Ranks that hold different layers."""
    context_parallel: Parallelism = 1
    """Ranks that split each prompt."""
    moe_tensor_parallel: Parallelism | None = None
    """Ranks that split each expert; times ``moe_expert_parallel`` equals ``tensor_parallel``."""
    moe_expert_parallel: Parallelism | None = None
    """Ranks that hold different experts."""

    dtype: Literal["auto", "float32", "float16", "bfloat16"] | None = None
    """Type of the computation; ``auto``: the checkpoint's type."""
    max_batch_size: Count | None = None
    """Most requests in a batch."""
    max_input_len: TokenCount | None = None
    """Longest prompt in tokens."""
    max_seq_len: TokenCount | None = None
    """Longest prompt plus answer in tokens (``max_output_len`` before release 0.11)."""
    max_num_tokens: TokenCount | None = None
    """Most tokens per step, over all requests; ``None`` with the reference backend: a full batch's, at most
    8192."""
    opt_num_tokens: TokenCount | None = None
    """Tokens per step for which TensorRT tunes kernels."""
    max_beam_width: Annotated[int, Field(ge=1, le=64)] | None = None
    """Most beams per request."""
    max_prompt_embedding_table_size: TokenCount | None = None
    """Virtual tokens of prompt tuning or images."""
    enable_chunked_prefill: bool | None = None
    """Compute long prompts in chunks; engines need ``paged_context_fmha``."""
    capacity_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] | None = None
    """``guaranteed_no_evict``: start a request only if the KV cache has room for its longest answer.
    ``max_utilization``: start earlier, and pause requests when the cache is full."""
    tokens_per_block: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Tokens per KV cache block."""
    gather_context_logits: bool = False
    """Let requests ask for logits of the prompt."""
    gather_generation_logits: bool = False
    """Let requests ask for logits of the answer."""
    max_lora_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    """Highest rank of LoRA adapters; 0 builds without LoRA."""
    lora: Lora = Field(default_factory=Lora)

    kv_cache_type: Literal["paged", "continuous", "disabled"] | None = None
    inflight_batching: bool | None = None
    """Option of ``build.py``; without it releases before 0.8 use V1 batching."""
    remove_input_padding: bool | None = None
    context_fmha: bool | None = None
    context_fmha_fp32_acc: bool | None = None
    paged_context_fmha: bool | None = None
    """Paged attention for prompts, which KV cache reuse and chunked prefill need."""
    multi_block_mode: bool | None = None
    plugins: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*\z")], Plugin] = Field(default={})
    """TensorRT plugins, named without ``_plugin``: ``{gpt_attention: float16, gemm: auto}``."""
    hidden_act: OneLine | None = None
    """Activation function for GPT's ``build.py``."""
    quantization: Quantization = Field(default_factory=Quantization)
    workers: Count | None = None
    """Ranks to build in parallel."""
    options: RawOptions = Field(default_factory=RawOptions)
    llm_api: dict[OneLine, Any] = Field(default={})
    """Further arguments of the LLM API, e.g. ``{kv_cache_config: {dtype: fp8}}``; they override other keys,
    and are checked if the release's arguments are known."""

    @classmethod
    def with_defaults(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """Fill in the backend's defaults; a key with ``null`` has the default, too."""
        backend = plain.get("backend", cls.model_fields["backend"].default)
        defaults = DEFAULTS.get(backend, {}) if isinstance(backend, str) else {}
        chosen = {key: value for key, value in plain.items() if value is not None or key not in defaults}
        return {**defaults, **chosen}

    @property
    def world_size(self) -> int:
        """Number of the engine's ranks: tensor * pipeline * context parallel."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel


DecodingMode = Literal[
    "top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle"
]
TensorType = Literal["TYPE_FP32", "TYPE_FP16", "TYPE_BF16"]
GpuIds = list[Annotated[int, Field(ge=0, le=63)]]
Fraction = Annotated[float, Field(gt=0, le=1)]


class KvCache(Section):
    """The KV cache; ``null``: the backend's default."""

    max_tokens: TokenCount | None = None
    """Size in tokens; ``None``: as much as the memory, or a full batch, allows."""
    free_gpu_memory_fraction: Fraction | None = None
    """Share of the GPU memory that is free after loading; ``None``: 0.9, before release 0.8 it is 0.85."""
    enable_block_reuse: bool | None = None
    """Reuse the cache of a common prompt prefix; engines need ``engine.paged_context_fmha``."""
    host_cache_size: Annotated[int, Field(ge=0)] | None = None
    """Host memory for cache blocks, in bytes."""
    max_attention_window: list[TokenCount] | None = None
    """Attention window in tokens, for all layers or for each."""
    sink_token_length: Annotated[int, Field(ge=0)] | None = None
    """First tokens that every window keeps."""


class ModelCopy(Section):
    """A copy of ``tensorrt_llm`` with its own ensemble and BLS model."""

    name: Annotated[OneLine, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\z")]
    """Name in the model repository."""
    gpu_device_ids: GpuIds
    """GPUs of the copy, by their numbers on the node."""
    engine: AbsolutePath | None = None
    """Folder of a finished engine; ``None``: the job's engine."""


class Repository(Section):
    """Triton's model repository; ``null``: the backend's default."""

    decoupled: bool = False
    """Let ``tensorrt_llm`` stream tokens."""
    triton_max_batch_size: Count | None = None
    """Requests that Triton passes on together; ``None``: ``engine.max_batch_size``."""
    instances: Count = 1
    """Instances of ``tensorrt_llm`` on the same GPUs, each with its own KV cache."""
    preprocessing_instances: Count = 1
    """Prompts tokenized in parallel."""
    postprocessing_instances: Count = 1
    """Answers detokenized in parallel."""
    bls_instances: Count | None = None
    """Requests that ``tensorrt_llm_bls`` serves in parallel, each by a process of tens of MiB; ``None``:
    ``engine.max_batch_size``, at most 8 (reference backend: 2)."""
    models: list[ModelCopy] = Field(default=[])
    """Copies of ``tensorrt_llm`` for ``serve.mode: orchestrator``."""
    add_special_tokens: bool | None = None
    """Add the tokenizer's special tokens to prompts."""
    skip_special_tokens: bool | None = None
    """Remove special tokens from answers."""
    accumulate_tokens: bool = False
    """Repeat the text so far in each response that ``tensorrt_llm_bls`` streams."""

    batching_strategy: Literal["V1", "inflight_batching", "inflight_fused_batching"] = (
        "inflight_fused_batching"
    )
    max_queue_delay_microseconds: Annotated[int, Field(ge=0, le=60_000_000)] = 0
    max_queue_size: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Most waiting requests; further ones are refused. 0: no limit."""
    enable_trt_overlap: bool | None = None
    """Overlap two half batches (releases before 0.10)."""

    gpu_device_ids: GpuIds | None = None
    """GPUs of ``tensorrt_llm``; ``None``: all that a rank sees."""

    decoding_mode: DecodingMode | None = None
    exclude_input_in_output: bool | None = None
    """Leave the prompt out of answers."""
    logits_datatype: TensorType = "TYPE_FP32"
    prompt_embedding_table_data_type: TensorType = "TYPE_FP16"
    parameters: dict[OneLine, dict[OneLine, bool | int | float | AnyText | None]] = Field(default={})
    """Further template placeholders by model, checked against the release's:
    ``{tensorrt_llm: {lora_cache_max_adapter_size: 64}}``. ``null`` removes the parameter."""
