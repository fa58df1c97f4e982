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
    synthetic: Literal["tiny-llama"] | None = None
    """A small random model instead of ``path``; nothing is downloaded."""
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
