"""The job file: *what* to run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trtllm_hpc.config.benchmark import Benchmark, Evaluation, LoraAdapter
from trtllm_hpc.config.engine import FRONTENDS, Engine, KvCache, Parallelism, Repository
from trtllm_hpc.config.layers import merged
from trtllm_hpc.config.sweep import SweepSection
from trtllm_hpc.config.types import (
    AbsolutePath,
    AnyText,
    Count,
    HubName,
    JobName,
    MemoryGib,
    Minutes,
    OneLine,
    Seconds,
    Section,
    Time,
    TokenCount,
    VariableName,
)


class Model(Section):
    """The model: a local Hugging Face folder, a model of a hub, or a synthetic model."""

    path: AbsolutePath | None = None
    """Folder with weights and tokenizer, as compute nodes see it. Beside ``hub``, ``spec.yaml`` has the
    folder of the download here; no other folder is accepted."""
    hub: HubName | None = None
    """Hub model, as ``org/name``, downloaded before any job is queued. Needs the extra ``hub``."""
    revision: OneLine | None = None
    """Branch, tag or commit of ``hub``; ``None``: ``main``. ``spec.yaml`` records the commit."""
    token_file: AbsolutePath | None = None
    """File with a hub token, for gated and private models; ``None``: ``$HF_TOKEN``, else the token of
    ``hf auth login``."""
    stage: Literal["node"] | None = None
    """``node``: each node copies the weights to the profile's ``node_models_folder`` before the server
    starts, and keeps them for later runs. Not for engines."""
    synthetic: Literal["tiny-llama", "stand-in"] | None = None
    """Random model; without ``path`` and ``hub``, the default is ``tiny-llama``. ``stand-in`` computes
    nothing and needs no PyTorch: for trying how a server starts, fails and ends."""
    tokenizer: AbsolutePath | None = None
    """Folder of the tokenizer; ``None``: the model's folder."""
    family: OneLine | None = None
    """Folder of TensorRT-LLM's examples with the conversion programs, e.g. ``llama``; ``None``: found by
    ``config.json``."""

    @classmethod
    def with_defaults(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """Choose the smallest synthetic model if no model is named."""
        return plain if {"path", "hub", "synthetic"} & plain.keys() else {**plain, "synthetic": "tiny-llama"}


class BuildStage(Section):
    """The build stage: resources, and commands for models that the toolkit cannot build."""

    time_limit_minutes: Minutes = 60
    """Time limit of the job."""
    cpus: Count = 4
    """CPUs of the job."""
    memory_gib: MemoryGib | None = None
    """Memory of the job; ``all``: the whole node's; ``None``: the partition's default."""
    gpus: Annotated[int, Field(ge=0, le=64)] | None = None
    """GPUs of the job; ``None``: 1 for TensorRT-LLM on a cluster with GPUs, else 0."""
    commands: list[Annotated[list[AnyText], Field(min_length=1)]] = Field(default=[])
    """Commands that build the engine in the image, each a list of words (no shell); part of the engine's
    cache key. Placeholders at the beginning of a word: ``{model}``, ``{output}`` (engine) and ``{work}``
    (temporary); anywhere: ``{examples}``, ``{tensor_parallel}``, ``{pipeline_parallel}`` and
    ``{world_size}``."""


CopyGpus = Annotated[list[Annotated[int, Field(ge=0, le=63)]], Field(min_length=1)]
"""GPUs of one model copy, by their numbers on the node."""


class Phase(Section):
    """Triton's copies of ``tensorrt_llm``, or the ``trtllm-serve`` servers, that compute one phase.

    ``trtllm-serve`` only: ``servers`` and the keys that override those of ``engine``.
    """

    engine: AbsolutePath | None = None
    """Triton: folder of a finished engine; ``None``: the job's engine."""
    instances: list[CopyGpus] = Field(default=[])
    """Triton: GPUs of each copy, by their numbers on the node: ``[[0, 1], [2, 3]]`` is two copies of two
    ranks."""
    servers: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of servers."""
    tensor_parallel: Parallelism | None = None
    """Overrides ``engine.tensor_parallel``."""
    pipeline_parallel: Parallelism | None = None
    """Overrides ``engine.pipeline_parallel``."""
    max_batch_size: Count | None = None
    """Overrides ``engine.max_batch_size``."""
    max_num_tokens: TokenCount | None = None
    """Overrides ``engine.max_num_tokens``."""
    moe_expert_parallel: Parallelism | None = None
    """Overrides ``engine.moe_expert_parallel``."""
    max_seq_len: TokenCount | None = None
    """Overrides ``engine.max_seq_len``."""
    llm_api: dict[OneLine, Any] = Field(default={})
    """Overrides keys of ``engine.llm_api``, section by section."""

    @property
    def differs(self) -> dict[str, int]:
        """The values that override the engine's, by key."""
        values = {key: getattr(self, key) for key in PHASE_KEYS}
        return {key: value for key, value in values.items() if value is not None}


PHASE_KEYS = (
    *("tensor_parallel", "pipeline_parallel", "max_batch_size", "max_num_tokens"),
    *("moe_expert_parallel", "max_seq_len"),
)
"""Keys of ``engine`` that a phase can override."""


class Disaggregated(Section):
    """Prompts on some GPUs, answers on others (TensorRT-LLM's ``disaggregated_serving``)."""

    context: Phase = Field(default_factory=Phase)
    """Servers or copies that compute prompts."""
    generation: Phase = Field(default_factory=Phase)
    """Servers or copies that compute answers."""
    kv_transfer: Literal["DEFAULT", "UCX", "NIXL", "MOONCAKE"] = "DEFAULT"
    """Transport of the KV cache (``cache_transceiver_config.backend``), ``trtllm-serve`` only."""
    kv_transfer_tokens: TokenCount | None = None
    """Transfer buffer in tokens; ``None``: more than the longest prompt, if the job file limits prompts."""
    router: Literal["round_robin", "load_balancing", "kv_cache_aware", "conversation"] | None = None
    """Rule by which the front server of ``trtllm-serve`` chooses a server; ``None``: the release's default.
    ``conversation``: the same server for the same ``X-Session-ID`` header or a continued prompt."""
    router_args: dict[OneLine, Any] = Field(default={})
    """Arguments of ``router``, e.g. ``{match_threshold: 0.6}`` for ``conversation``."""
    request_timeout_seconds: Seconds = 180
    """Time that the front server waits for an answer."""
    front: dict[OneLine, Any] = Field(default={})
    """Further keys of the front server's file, e.g. ``{schedule_style: generation_first, num_workers: 4}``;
    refused if the release lacks them."""

    @property
    def roles(self) -> tuple[tuple[str, Phase], ...]:
        """Names and settings of both phases, in the order in which their servers are numbered."""
        return ("context", self.context), ("generation", self.generation)


class Serve(Section):
    """The serve stage."""

    mode: Literal["leader", "orchestrator", "disaggregated"] = "leader"
    """``leader``: one server per rank; rank 0 answers. ``orchestrator``: one server starts the workers of
    several models. ``disaggregated``: prompts and answers on different ranks, of one Triton on one node or
    of ``trtllm-serve`` servers on any nodes."""
    disaggregated: Disaggregated | None = None
    """Settings of ``mode: disaggregated``."""

    instances: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of servers with the same model, each with all ranks of the engine. Several need a proxy."""
    placement: Literal["pack", "spread"] = "pack"
    """``pack``: as many instances per node as its GPUs allow. ``spread``: one per node."""
    routing: Literal["least", "session"] = "least"
    """How the proxy chooses an instance. ``least``: fewest open requests. ``session``: the same instance for
    the same ``X-Session-ID`` header or OpenAI ``user``."""
    restarts: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Restarts of each instance, or phase server, that dies after it has served; ``None``: 3 if there are
    several, else 0."""
    nodes: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Nodes for all instances together; ``None``: as few as the GPUs allow."""
    cpus_per_rank: Count = 2
    """CPUs of each rank."""
    memory_gib_per_node: MemoryGib | None = None
    """Memory on each node; ``all``: all of it, which the profile's ``exclusive`` does not request; ``None``:
    the partition's default."""
    time_limit_minutes: Minutes = 60
    """Time limit of the job."""
    ready_timeout_seconds: Seconds = 600
    """Time limit from the first rank's start until all models are ready."""
    hang_timeout_seconds: Annotated[int, Field(ge=10, le=86_400), Time(1)] | None = 45
    """The server counts as hung after a rank shows no sign of life, has a stopped process (SIGSTOP), or makes
    no progress on a request for this long. ``None``: no watchdog."""
    frontend: Literal["openai", "triton"] | None = None
    """``openai``: ``trtllm-serve``, with OpenAI's protocol. ``triton``: Triton. ``None``: ``openai`` for
    ``engine.backend: pytorch`` and ``command``, else ``triton``."""
    command: list[AnyText] = Field(default=[])
    """For ``engine.backend: command``: program and arguments of a server with OpenAI's protocol.
    Placeholders: ``{model}``, ``{name}``, ``{address}``, ``{port}``, ``{tensor_parallel}``,
    ``{pipeline_parallel}``, ``{max_seq_len}``, ``{max_batch_size}``, ``{nodes}``, ``{node_rank}``,
    ``{gpus_per_node}``, ``{leader_address}`` and ``{leader_port}``."""
    worker_command: list[AnyText] | None = None
    """Command on every node of an instance except the first; ``None``: ``command``."""
    image: OneLine | None = None
    """Container image, if the profile has a container runtime; ``None``: the profile's image."""
    environment: dict[VariableName, AnyText] = Field(default={})
    """Environment variables of every rank's server."""
    prologue: list[OneLine] = Field(default=[])
    """Bash lines before each rank's server, in the same shell and container; a node's ranks run them one at a
    time."""
    wrapper: list[AnyText] = Field(default=[])
    """Command before each rank's server, e.g. ``[numactl, --localalloc]``. It must exec the server, which
    receives signals."""
    proxy: Literal["none", "haproxy"] = "haproxy"
    """``haproxy``: HAProxy forwards requests that carry the run's key, to Unix sockets that other users
    cannot reach. ``none``: everybody who reaches the node can use the server."""
    max_request_mib: Annotated[int, Field(ge=1, le=4096)] = 64
    """Largest HTTP body, or gRPC message outside streams, that the proxy accepts."""
    tls: bool = False
    """Encrypt connections to the proxy; the endpoint has the certificate's fingerprint."""
    idle_minutes: Annotated[float, Field(gt=0, le=525_600), Time(60)] | None = None
    """Stop the server after this time without requests (health checks, metrics and model lists do not count);
    ``None``: never. Needs a proxy; no effect if the companion stops the server."""
    keep_running: bool = False
    """Continue to serve after the companion has ended, until the time limit or ``cancel``."""
    renew: bool = False
    """Keep a successor job in the queue that takes over after the time limit, preemption or a lost node,
    until ``cancel``. Needs ``keep_running``."""
    drain_seconds: Seconds = 60
    """With ``renew``: time for open requests to finish near the time limit; new requests are refused."""


class Preflight(Section):
    """Checks on the nodes before the server starts."""

    network: Literal["sockets", "none"] = "sockets"
    """``sockets``: all pairs of nodes exchange TCP packets (a second); a pair that cannot ends the job."""


class CompanionRequest(Section):
    """The companion's first request."""

    prompt: AnyText = "What is machine learning?"
    """Prompt."""
    max_tokens: TokenCount = 16
    """Most tokens of the answer."""
    context_logits: bool = False
    """Save the prompt's logits in ``results/logits.npz``; needs ``engine.gather_context_logits``."""
    generation_logits: bool = False
    """Save the answer's logits in ``results/logits.npz``; needs ``engine.gather_generation_logits``."""
    lora: LoraAdapter | None = None
    """LoRA adapter of the answer, over gRPC only; needs ``engine.max_lora_rank``."""


class Companion(Section):
    """The client job beside the server: first request, benchmark, evaluation."""

    enabled: bool = True
    """Without a companion, the server runs until its time limit or ``cancel``."""
    cpus: Count = 1
    """CPUs of the companion."""
    memory_gib: MemoryGib | None = None
    """Memory of the companion; ``all``: the whole node's; ``None``: the partition's default."""
    time_limit_minutes: Minutes = 45
    """Time limit of the companion; it waits for the endpoint until one minute earlier."""
    start_timeout_seconds: Seconds = 3600
    """Time that a ready server waits for the companion to start, before the server stops."""
    request: CompanionRequest = Field(default_factory=CompanionRequest)
    benchmark: Benchmark | None = Field(default_factory=Benchmark)
    """The benchmark; ``None``: none."""
    evaluate: Evaluation | None = None
    """Evaluation of the answers after the benchmark; ``None``: none."""


class JobFile(Section):
    """A whole job file."""

    name: JobName
    """Names the run folder and the Slurm jobs."""
    model: Model = Field(default_factory=Model)
    engine: Engine = Field(default_factory=Engine)
    build: BuildStage = Field(default_factory=BuildStage)
    kv_cache: KvCache = Field(default_factory=KvCache)
    repository: Repository = Field(default_factory=Repository)
    preflight: Preflight = Field(default_factory=Preflight)
    serve: Serve = Field(default_factory=Serve)
    companion: Companion = Field(default_factory=Companion)

    @property
    def frontend(self) -> Literal["openai", "triton"]:
        """The kind of server that answers requests, chosen by the backend if no key names one."""
        return self.serve.frontend or FRONTENDS[self.engine.backend]

    def with_phase(self, phase: Phase) -> JobFile:
        """Return the job with the values that one phase of a disaggregated server overrides."""
        llm_api = merged(self.engine.llm_api, phase.llm_api)
        return self.model_copy(
            update={"engine": self.engine.model_copy(update={**phase.differs, "llm_api": llm_api})}
        )

    @property
    def endpoint_wait_s(self) -> int:
        """Longest wait of the companion for the endpoint, in seconds."""
        return self.companion.time_limit_minutes * 60 - 60

    @property
    def stops_server(self) -> bool:
        """Whether the companion stops the server when the companion ends."""
        return self.companion.enabled and not self.serve.keep_running


class JobDocument(JobFile):
    """A job file as the user writes it, before ``extends`` and ``sweep`` are resolved."""

    extends: OneLine | None = None
    """Base job file: the name of a shipped file, or a path relative to this file. Sections are merged, lists
    replaced; ``null`` removes the base's value."""
    sweep: SweepSection | None = None
    """Variants of the job, for ``trtllm-hpc sweep``."""
