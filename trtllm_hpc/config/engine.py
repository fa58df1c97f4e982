"""The job file's ``engine`` section: one vocabulary for every release of TensorRT-LLM.

Beside it the sections ``repository`` and ``kv_cache``, the latter in the words of ``KvCacheConfig``.
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
"""Defaults of the keys by backend. Any other key of TensorRT-LLM has the release's own default."""


FRONTENDS: Mapping[str, Literal["openai", "triton"]] = {
    "reference": "triton",
    "tensorrtllm": "triton",
    "python": "triton",
    "pytorch": "openai",
    "command": "openai",
}
"""``serve.frontend`` by backend, where the job file does not name it."""


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
    """``fp8_rowwise``, ``int4_gptq`` and those of weights alone (``int8_wo``, ``int4_wo``) are done by
    ``convert_checkpoint.py``, the others by ``quantize.py``, whose ``--qformat`` has these names."""
    kv_cache: Literal["int8", "fp8"] | None = None
    """Type of the keys and values in the cache."""
    calibration_dataset: AbsolutePath | None = None
    """A local folder. Upstream's default is a download, which compute nodes often cannot make."""
    calibration_size: Count | None = None
    """Number of calibration samples."""
    checkpoint: AbsolutePath | None = None
    """Weights that GPTQ has quantized already."""


class Lora(Section):
    """LoRA adapters."""

    target_modules: list[OneLine] = Field(default=[])
    """TensorRT-LLM's names, e.g. ``attn_q``."""
    adapters: list[AbsolutePath] = Field(default=[])
    """Hugging Face adapters to convert for clients (``hf_lora_convert.py``)."""
    storage_type: Literal["float16", "bfloat16", "float32"] = "float16"
    """Type of the converted adapters (``hf_lora_convert.py --storage-type``)."""


class RawOptions(Section):
    """Extra arguments for upstream's programs, passed on unchanged; checked against the release's options."""

    build_py: list[OneLine] = Field(default=[])
    """Arguments of ``build.py``."""
    convert: list[OneLine] = Field(default=[])
    """Arguments of ``convert_checkpoint.py``."""
    quantize: list[OneLine] = Field(default=[])
    """Arguments of ``quantize.py``."""
    build: list[OneLine] = Field(default=[])
    """Arguments of ``trtllm-build``."""


class Engine(Section):
    """How the engine is built. A key that is left out has the backend's default, or the release's."""

    backend: Backend = "reference"
    """What computes: TensorRT-LLM with an engine, behind Triton's C++ backend (``tensorrtllm``) or its Python
    backend (``python``); its LLM API on PyTorch, without an engine (``pytorch``); ``reference``:
    PyTorch/transformers behind the same Triton models; or the server that ``serve.command`` starts
    (``command``)."""
    tensorrt_llm_version: OneLine | None = None
    """E.g. ``0.16.0``; ``None``: from the tag of the container image."""
    directory: AbsolutePath | None = None
    """A finished engine: the run has no build stage."""

    tensor_parallel: Parallelism = 1
    """Ranks that split each layer. There are tensor * pipeline * context parallel ranks."""
    pipeline_parallel: Parallelism = 1
    """Ranks that hold different layers."""
    context_parallel: Parallelism = 1
    """Ranks that split each prompt."""
    moe_tensor_parallel: Parallelism | None = None
    """Ranks that split each expert; times ``moe_expert_parallel`` it is ``tensor_parallel``."""
    moe_expert_parallel: Parallelism | None = None
    """Ranks that hold different experts."""

    dtype: Literal["auto", "float32", "float16", "bfloat16"] | None = None
    """Type that the model is computed in; ``auto``: the checkpoint's."""
    max_batch_size: Count | None = None
    """Most requests that are computed at once."""
    max_input_len: TokenCount | None = None
    """Longest prompt, in tokens."""
    max_seq_len: TokenCount | None = None
    """Longest prompt and answer together, in tokens. Releases before 0.11 take it as ``max_output_len``."""
    max_num_tokens: TokenCount | None = None
    """Tokens that one step computes, of all requests together; ``None`` with the reference backend: those of
    a full batch, at most 8192."""
    opt_num_tokens: TokenCount | None = None
    """Tokens per step for which TensorRT tunes its kernels."""
    max_beam_width: Annotated[int, Field(ge=1, le=64)] | None = None
    """Most beams of a request."""
    max_prompt_embedding_table_size: TokenCount | None = None
    """Virtual tokens of prompt tuning, or of images."""
    enable_chunked_prefill: bool | None = None
    """Compute long prompts in chunks; an engine needs ``paged_context_fmha``."""
    capacity_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] | None = None
    """Whether a request starts only if the KV cache has room for its longest answer."""
    tokens_per_block: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Tokens in a block of the KV cache."""
    gather_context_logits: bool = False
    """Whether a request may ask for the logits of its prompt."""
    gather_generation_logits: bool = False
    """Whether a request may ask for the logits of its answer."""
    max_lora_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    """Highest rank of the LoRA adapters that a request may name; 0 builds without LoRA."""
    lora: Lora = Field(default_factory=Lora)

    kv_cache_type: Literal["paged", "continuous", "disabled"] | None = None
    inflight_batching: bool | None = None
    """``build.py``'s switch; without it, releases before 0.8 use V1 batching."""
    remove_input_padding: bool | None = None
    context_fmha: bool | None = None
    context_fmha_fp32_acc: bool | None = None
    paged_context_fmha: bool | None = None
    """Attention over a paged KV cache for prompts too; KV cache reuse and chunked context need it."""
    multi_block_mode: bool | None = None
    plugins: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*\z")], Plugin] = Field(default={})
    """TensorRT plugins by their names without ``_plugin``: ``{gpt_attention: float16, gemm: auto}``."""
    hidden_act: OneLine | None = None
    """Activation function, which GPT's ``build.py`` needs."""
    quantization: Quantization = Field(default_factory=Quantization)
    workers: Count | None = None
    """Ranks that are built in parallel."""
    options: RawOptions = Field(default_factory=RawOptions)
    llm_api: dict[OneLine, Any] = Field(default={})
    """Further configuration of the LLM API, as upstream's YAML has it: ``{kv_cache_config: {dtype: fp8}}``.
    Where another key means the same argument, this one counts; checked where the release's keys are known."""

    @classmethod
    def with_defaults(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """Fill in the backend's defaults."""
        backend = plain.get("backend", cls.model_fields["backend"].default)
        defaults = DEFAULTS.get(backend, {}) if isinstance(backend, str) else {}
        given = {key: value for key, value in plain.items() if value is not None or key not in defaults}
        return {**defaults, **given}

    @property
    def world_size(self) -> int:
        """Ranks that the engine needs: tp * pp * cp."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel


DecodingMode = Literal[
    "top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle"
]
TensorType = Literal["TYPE_FP32", "TYPE_FP16", "TYPE_BF16"]
GpuIds = list[Annotated[int, Field(ge=0, le=63)]]
Fraction = Annotated[float, Field(gt=0, le=1)]


class KvCache(Section):
    """Size and use of the KV cache; ``null`` leaves a key to the backend's default."""

    max_tokens: TokenCount | None = None
    """Size in tokens; ``None``: as much as the memory, or a full batch, allows."""
    free_gpu_memory_fraction: Fraction | None = None
    """The KV cache's share of the GPU memory that is free after loading.

    ``None`` is the release's default: 0.9, before 0.8 it was 0.85.
    """
    enable_block_reuse: bool | None = None
    """Reuse the KV cache of a common prompt prefix; an engine needs ``engine.paged_context_fmha``."""
    host_cache_size: Annotated[int, Field(ge=0)] | None = None
    """Bytes of host memory to which blocks are moved."""
    max_attention_window: list[TokenCount] | None = None
    """Attention window in tokens: one number for all layers, or one for each."""
    sink_token_length: Annotated[int, Field(ge=0)] | None = None
    """Tokens at the beginning that every window keeps."""


class ModelCopy(Section):
    """One copy of ``tensorrt_llm`` (orchestrator mode), with its own ensemble and BLS model."""

    name: Annotated[OneLine, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\z")]
    """Name of the copy in the model repository."""
    gpu_device_ids: GpuIds
    """GPUs of this copy, by their numbers on the node."""
    engine: AbsolutePath | None = None
    """A finished engine; ``None``: the job's own."""


class Repository(Section):
    """Settings in Triton's model repository; ``null`` leaves a key to the backend's default."""

    decoupled: bool = False
    """Whether ``tensorrt_llm`` may stream its tokens."""
    triton_max_batch_size: Count | None = None
    """Requests that Triton passes on at once; ``None``: ``engine.max_batch_size``."""
    instances: Count = 1
    """Instances of ``tensorrt_llm`` on the same GPUs, each with its own KV cache."""
    preprocessing_instances: Count = 1
    """Prompts that are tokenized at once."""
    postprocessing_instances: Count = 1
    """Answers that are turned into text at once."""
    bls_instances: Count | None = None
    """Requests that ``tensorrt_llm_bls`` serves at once; ``None``: ``engine.max_batch_size``, at most 8.

    Fewer instances than the engine's batch leave places in it empty, but each is a process with tens of MiB.
    With the reference backend ``None`` is 2.
    """
    models: list[ModelCopy] = Field(default=[])
    """Copies of ``tensorrt_llm`` for ``serve.mode: orchestrator``."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer's special tokens are added to the prompt."""
    skip_special_tokens: bool | None = None
    """Whether special tokens are removed from the answer."""
    accumulate_tokens: bool = False
    """Whether a stream of ``tensorrt_llm_bls`` repeats the text so far in each response."""

    batching_strategy: Literal["V1", "inflight_batching", "inflight_fused_batching"] = (
        "inflight_fused_batching"
    )
    max_queue_delay_microseconds: Annotated[int, Field(ge=0, le=60_000_000)] = 0
    max_queue_size: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Requests that may wait for a place in the batch; any more are refused. 0: no limit."""
    enable_trt_overlap: bool | None = None
    """Overlap two half batches; only for releases before 0.10."""

    gpu_device_ids: GpuIds | None = None
    """GPUs of ``tensorrt_llm``; ``None``: all that a rank sees."""

    decoding_mode: DecodingMode | None = None
    exclude_input_in_output: bool | None = None
    """Whether answers come without their prompt."""
    logits_datatype: TensorType = "TYPE_FP32"
    prompt_embedding_table_data_type: TensorType = "TYPE_FP16"
    parameters: dict[OneLine, dict[OneLine, bool | int | float | AnyText | None]] = Field(default={})
    """Further placeholders, by model: ``{tensorrt_llm: {lora_cache_max_adapter_size: 64}}``; checked against
    the release's. ``null`` takes the parameter out."""
