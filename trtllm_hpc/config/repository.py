"""The job file's sections ``repository`` and ``kv_cache``, the latter in the words of ``KvCacheConfig``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trtllm_hpc.config.types import AbsolutePath, AnyText, Count, OneLine, Section, TokenCount

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
