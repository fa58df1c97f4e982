"""The job file: *what* to run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trtllm_hpc.config.types import AbsolutePath, AnyText, Count, JobName, Minutes, Seconds, Section

Parallelism = Annotated[int, Field(ge=1, le=4096)]
TokenCount = Annotated[int, Field(ge=1, le=10_000_000)]


class Model(Section):
    """The model: a local Hugging Face folder, or one made on the spot."""

    path: AbsolutePath | None = None
    """Folder with the weights and the tokenizer, as the compute nodes see it."""
    synthetic: Literal["tiny-llama", "llama-170m", "llama-1b"] | None = None
    """A random model instead of ``path``; nothing is downloaded. The larger ones are for benchmarks."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of the synthetic model's weights."""


class Engine(Section):
    """How the engine is built."""

    backend: Literal["reference"] = "reference"
    """What computes. ``reference`` is PyTorch/transformers behind the same Triton models."""
    directory: AbsolutePath | None = None
    """A finished engine. With it the build stage is left out."""
    tensor_parallel: Parallelism = 1
    pipeline_parallel: Parallelism = 1
    context_parallel: Parallelism = 1
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    max_batch_size: Count = 8
    max_input_len: TokenCount = 256
    """Longest prompt, in tokens."""
    max_seq_len: TokenCount = 512
    """Longest prompt and answer together, in tokens."""
    max_num_tokens: TokenCount | None = None
    """Tokens of all requests that one step computes; ``None`` is 8192, or all that a full batch can have."""
    max_beam_width: Annotated[int, Field(ge=1, le=64)] = 1
    tokens_per_block: Annotated[int, Field(ge=1, le=1024)] = 64
    """The KV cache is handed out in blocks of so many tokens."""
    gather_context_logits: bool = False
    """Whether a request may ask for the logits of its prompt."""
    gather_generation_logits: bool = False
    """Whether a request may ask for the logits of its answer."""
    max_lora_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    """Highest rank of the LoRA adapters that a request may name; 0 builds without LoRA."""

    @property
    def longest_request(self) -> int:
        """Tokens of KV cache that the longest request holds, in whole blocks, all its beams together."""
        size = self.tokens_per_block
        return (self.max_seq_len + size - 1) // size * size * self.max_beam_width

    @property
    def world_size(self) -> int:
        """Ranks that the engine needs: tp * pp * cp."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel


class Build(Section):
    """Resources of the build stage."""

    time_limit_minutes: Minutes = 60
    cpus: Count = 4
    memory_gib: Count | None = None
    """Memory of the job; ``None`` leaves it to the partition."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0


class Repository(Section):
    """Triton's model repository."""

    decoupled: bool = False
    """Whether ``tensorrt_llm`` may stream: one response a token."""
    preprocessing_instances: Count = 1
    postprocessing_instances: Count = 1
    bls_instances: Count | None = None
    """Requests that ``tensorrt_llm_bls`` serves at once; ``None`` is ``engine.max_batch_size``, 8 at most.

    Fewer instances than the engine's batch leave places in it empty, but each
    is a process with tens of MiB.
    """
    accumulate_tokens: bool = False
    """Whether a stream of ``tensorrt_llm_bls`` repeats the text so far in each response."""
    max_queue_size: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Requests that may wait for a place in the batch; one more is refused. 0 sets no bound."""
    max_tokens_in_paged_kv_cache: TokenCount | None = None
    """Tokens of all running requests in the KV cache; ``None``: as many as a full batch can need."""
    kv_cache_free_gpu_mem_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the GPU memory beside the weights that the KV cache may take."""


class Serve(Section):
    """The serve stage."""

    nodes: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Nodes to spread the ranks over; ``None`` takes as few as the GPUs allow."""
    cpus_per_rank: Count = 2
    memory_gib_per_node: Count | None = None
    """Memory on each node; ``None`` leaves it to the partition."""
    time_limit_minutes: Minutes = 60
    ready_timeout_seconds: Seconds = 600
    """Bound from the first rank's start to every model READY."""
    keep_running: bool = False
    """Go on serving after the companion is done, until the time limit or ``cancel``."""


class Request(Section):
    """The companion's first question."""

    prompt: AnyText = "What is machine learning?"
    max_tokens: TokenCount = 16


class Benchmark(Section):
    """The companion's load: open loop, absolute schedule."""

    requests: Count = 20
    rate_per_second: Annotated[float, Field(gt=0, le=100_000)] = 4.0
    arrival: Literal["constant", "poisson"] = "poisson"
    max_tokens: TokenCount = 16
    """Output tokens asked of each request."""
    warmup_requests: Annotated[int, Field(ge=0, le=1_000_000)] = 2
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    request_timeout_seconds: Seconds = 60


class Companion(Section):
    """The job beside the server: client and benchmark."""

    enabled: bool = True
    """Without it nobody stops the server: it runs to its time limit or ``cancel``."""
    cpus: Count = 1
    memory_gib: Count | None = None
    time_limit_minutes: Minutes = 45
    endpoint_timeout_seconds: Seconds = 1200
    """Bound on the wait for the endpoint; longer than ``serve.ready_timeout_seconds``."""
    start_timeout_seconds: Seconds = 3600
    """Bound on a ready server's wait for the companion's start; then it stops by itself."""
    request: Request = Request()
    benchmark: Benchmark | None = Benchmark()
    """``null`` asks the question only."""


class JobFile(Section):
    """A whole job file."""

    name: JobName
    model: Model = Model(synthetic="tiny-llama")
    engine: Engine = Engine()
    build: Build = Build()
    repository: Repository = Repository()
    serve: Serve = Serve()
    companion: Companion = Companion()
