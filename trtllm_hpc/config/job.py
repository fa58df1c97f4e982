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
    """The model: a local Hugging Face folder, a model of a hub, or one made on the spot."""

    path: AbsolutePath | None = None
    """Folder with the weights and the tokenizer, as the compute nodes see it. With ``hub``: where the model
    was found; the key is written into ``spec.yaml``, and another folder is not used."""
    hub: HubName | None = None
    """Model of a hub, as ``org/name``: ``render``, ``submit`` and ``sweep`` download it before they queue
    anything. Needs the extra ``hub``."""
    revision: OneLine | None = None
    """Branch, tag or commit of ``hub``; ``None``: ``main``. ``spec.yaml`` has the commit."""
    token_file: AbsolutePath | None = None
    """File with a token of ``hub``, for gated and private models; ``None``: ``$HF_TOKEN``, else the token
    of ``hf auth login``."""
    stage: Literal["node"] | None = None
    """``node``: each node copies the weights to its own disk, in the profile's ``node_models_folder``, before
    the server starts, and keeps them for later runs. For servers that load ``path`` or ``hub`` as it is."""
    synthetic: Literal["tiny-llama", "stand-in"] | None = None
    """A random model instead of ``path``, ``tiny-llama`` where neither is named; nothing is downloaded.
    ``stand-in`` computes nothing and needs no PyTorch: for trying how a server starts, fails and ends."""
    tokenizer: AbsolutePath | None = None
    """Folder of the tokenizer; ``None``: the model's folder."""
    family: OneLine | None = None
    """Folder of upstream's examples whose programs convert the model, e.g. ``llama``; ``None``: found from
    its ``config.json``."""

    @classmethod
    def with_defaults(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """Take the smallest synthetic model where neither kind is named."""
        return plain if {"path", "hub", "synthetic"} & plain.keys() else {**plain, "synthetic": "tiny-llama"}


class BuildStage(Section):
    """The build stage: its resources, and commands for models that the toolkit cannot build."""

    time_limit_minutes: Minutes = 60
    """Time limit of the job."""
    cpus: Count = 4
    """CPUs of the job."""
    memory_gib: MemoryGib | None = None
    """Memory of the job; ``all``: all of its node's. ``None`` leaves it to the partition."""
    gpus: Annotated[int, Field(ge=0, le=64)] | None = None
    """GPUs of the job; ``None``: one for TensorRT-LLM where the cluster has any, else none."""
    commands: list[Annotated[list[AnyText], Field(min_length=1)]] = Field(default=[])
    """Commands that build the engine of a model of any family, run in turn in the image, each a list of
    words (no shell reads them). Words in braces are placeholders: ``{model}`` and ``{output}``, the folders
    of the model and of the engine to write, and ``{work}``, a folder that is removed at the end, at the
    beginning of a word; ``{examples}``, ``{tensor_parallel}``, ``{pipeline_parallel}`` and ``{world_size}``
    anywhere. Their text, the model and the release are the engine's key in the cache."""


CopyGpus = Annotated[list[Annotated[int, Field(ge=0, le=63)]], Field(min_length=1)]
"""GPUs of one copy of a model, as the node numbers them."""


class Phase(Section):
    """What computes one phase: with Triton copies of ``tensorrt_llm``, with ``trtllm-serve`` servers."""

    engine: AbsolutePath | None = None
    """With Triton, a finished engine; ``None`` is the one of this job."""
    instances: list[CopyGpus] = Field(default=[])
    """With Triton, the GPUs of each copy, as the node numbers them: ``[[0, 1], [2, 3]]`` is two copies of
    two ranks."""
    servers: Annotated[int, Field(ge=1, le=1024)] = 1
    """With ``trtllm-serve``, how many servers."""
    tensor_parallel: Parallelism | None = None
    """With ``trtllm-serve``, instead of ``engine.tensor_parallel``."""
    pipeline_parallel: Parallelism | None = None
    """With ``trtllm-serve``, instead of ``engine.pipeline_parallel``."""
    max_batch_size: Count | None = None
    """With ``trtllm-serve``, instead of ``engine.max_batch_size``."""
    max_num_tokens: TokenCount | None = None
    """With ``trtllm-serve``, instead of ``engine.max_num_tokens``."""
    moe_expert_parallel: Parallelism | None = None
    """With ``trtllm-serve``, instead of ``engine.moe_expert_parallel``."""
    max_seq_len: TokenCount | None = None
    """With ``trtllm-serve``, instead of ``engine.max_seq_len``."""
    llm_api: dict[OneLine, Any] = Field(default={})
    """With ``trtllm-serve``, merged into ``engine.llm_api``, section by section; where both have a key, this
    one counts."""

    @property
    def differs(self) -> dict[str, int]:
        """What the engine's keys are instead."""
        values = {key: getattr(self, key) for key in PHASE_KEYS}
        return {key: value for key, value in values.items() if value is not None}


PHASE_KEYS = (
    *("tensor_parallel", "pipeline_parallel", "max_batch_size", "max_num_tokens"),
    *("moe_expert_parallel", "max_seq_len"),
)
"""Keys of ``engine`` that a phase may have otherwise."""


class Disaggregated(Section):
    """Prompts on some GPUs, answers on others (upstream's ``disaggregated_serving``)."""

    context: Phase = Field(default_factory=Phase)
    """Servers or copies that compute prompts."""
    generation: Phase = Field(default_factory=Phase)
    """Servers or copies that compute answers."""
    kv_transfer: Literal["DEFAULT", "UCX", "NIXL", "MOONCAKE"] = "DEFAULT"
    """How ``trtllm-serve`` sends the KV cache (``cache_transceiver_config.backend``)."""
    kv_transfer_tokens: TokenCount | None = None
    """Size of the buffer in which the KV cache is sent; upstream advises the longest prompt or more."""
    router: Literal["round_robin", "load_balancing", "kv_cache_aware", "conversation"] | None = None
    """How ``trtllm-serve``'s front chooses a server of a phase; ``None``: the release's default.
    ``conversation``: the same one for the same header ``X-Session-ID``, or for a prompt that goes on."""
    router_args: dict[OneLine, Any] = Field(default={})
    """Arguments of ``router``, for example ``{match_threshold: 0.6}`` of ``conversation``."""
    request_timeout_seconds: Seconds = 180
    """How long the front waits for an answer."""
    front: dict[OneLine, Any] = Field(default={})
    """Further keys of the front's file, for example ``{schedule_style: generation_first, num_workers: 4}``;
    refused where the release does not have them."""

    @property
    def roles(self) -> tuple[tuple[str, Phase], ...]:
        """Both phases with their names, in the order of their servers."""
        return ("context", self.context), ("generation", self.generation)


class Serve(Section):
    """The serve stage."""

    mode: Literal["leader", "orchestrator", "disaggregated"] = "leader"
    """``leader``: a server a rank, rank 0 answers. ``orchestrator``: one server spawns the workers of
    several models. ``disaggregated``: some ranks compute prompts, others answers: of one Triton on one node,
    or of several ``trtllm-serve`` on any number of nodes."""
    disaggregated: Disaggregated | None = None
    """Settings of ``mode: disaggregated``."""

    instances: Annotated[int, Field(ge=1, le=1024)] = 1
    """Servers with the same model, each of as many ranks as the engine has. Several need a proxy."""
    placement: Literal["pack", "spread"] = "pack"
    """``pack``: as many instances on a node as it has GPUs for. ``spread``: one on each node."""
    routing: Literal["least", "session"] = "least"
    """How the proxy chooses an instance. ``least``: the one with the fewest open requests. ``session``: the
    same one for the same header ``X-Session-ID``, or OpenAI's ``user``."""
    restarts: Annotated[int, Field(ge=0, le=1000)] | None = None
    """How often an instance, or a server of a phase, that has served before is started again after it died.
    ``None``: 3 times if there are several, never if there is one."""
    nodes: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Nodes for all instances together; ``None`` takes as few as the GPUs allow."""
    cpus_per_rank: Count = 2
    """CPUs of each rank."""
    memory_gib_per_node: MemoryGib | None = None
    """Memory on each node; ``all``: all that the node has, which ``exclusive`` in the profile does not give.
    ``None`` leaves it to the partition."""
    time_limit_minutes: Minutes = 60
    """Time limit of the job."""
    ready_timeout_seconds: Seconds = 600
    """Bound from the first rank's start to every model READY."""
    hang_timeout_seconds: Annotated[int, Field(ge=10, le=86_400), Time(1)] | None = 45
    """A server has failed when a rank gives no sign of life, has a stopped process (SIGSTOP), or computes
    nothing for a request, for so long. ``None``: it is not watched."""
    frontend: Literal["openai", "triton"] | None = None
    """What answers: ``trtllm-serve`` with OpenAI's protocol, or Triton. ``None``: ``openai`` for
    ``engine.backend: pytorch``, else ``triton``."""
    command: list[AnyText] = Field(default=[])
    """With ``engine.backend: command``, program and arguments of a server with OpenAI's protocol. Words in
    braces are placeholders: ``{model}``, ``{name}``, ``{address}``, ``{port}``, ``{tensor_parallel}``,
    ``{pipeline_parallel}``, ``{max_seq_len}``, ``{max_batch_size}``, ``{nodes}``, ``{node_rank}``,
    ``{gpus_per_node}``, ``{leader_address}`` and ``{leader_port}``."""
    worker_command: list[AnyText] | None = None
    """``command`` for every node of an instance but the first; ``None``: the same command."""
    image: OneLine | None = None
    """Container image of this job, where the profile has a container runtime; ``None``: the profile's."""
    environment: dict[VariableName, AnyText] = Field(default={})
    """Variables of every rank's server."""
    prologue: list[OneLine] = Field(default=[])
    """Lines of bash that each rank runs in the container before its server, in the same shell: variables
    and limits that they set are the server's. The ranks of a node take turns."""
    wrapper: list[AnyText] = Field(default=[])
    """Words before each rank's server, e.g. ``[numactl, --localalloc]``. The program must become the server
    (exec), as ``numactl``, ``taskset`` and ``prlimit`` do: signals are sent to it."""
    proxy: Literal["none", "haproxy"] = "haproxy"
    """``haproxy``: clients reach the servers through HAProxy, which asks for the run's key; the servers
    listen on Unix sockets that other users cannot reach. ``none``: everybody who reaches the node may call
    the server."""
    max_request_mib: Annotated[int, Field(ge=1, le=4096)] = 64
    """Largest request that the proxy lets through: a body over HTTP, a message over gRPC outside streams."""
    tls: bool = False
    """Whether the proxy encrypts; the fingerprint of its certificate is in the endpoint."""
    idle_minutes: Annotated[float, Field(gt=0, le=525_600), Time(60)] | None = None
    """A server that nobody has asked for so long ends itself, unless its companion stops it anyway. ``None``:
    it waits until its time limit. Requests that generate or infer count, and open ones; health checks,
    metrics and lists of models do not. Needs a proxy."""
    keep_running: bool = False
    """Go on serving after the companion is done, until the time limit or ``cancel``."""
    renew: bool = False
    """Whether another job serves after the time limit, preemption or a lost node: it waits in the queue while
    this one serves. Until ``cancel``. Needs ``keep_running``."""
    drain_seconds: Seconds = 60
    """With ``renew``: how long open requests may take when the time limit is near; no new ones begin."""


class Preflight(Section):
    """What is checked on the nodes before the server starts."""

    network: Literal["sockets", "none"] = "sockets"
    """``sockets``: the nodes of a job exchange packets by TCP, in a second; a pair that cannot talk ends the
    job."""


class CompanionRequest(Section):
    """The companion's first question."""

    prompt: AnyText = "What is machine learning?"
    """The question."""
    max_tokens: TokenCount = 16
    """Most tokens of the answer."""
    context_logits: bool = False
    """Keep the prompt's logits in ``results/logits.npz``; needs ``engine.gather_context_logits``."""
    generation_logits: bool = False
    """Keep the answer's logits in ``results/logits.npz``; needs ``engine.gather_generation_logits``."""
    lora: LoraAdapter | None = None
    """LoRA adapter of the answer; needs ``engine.max_lora_rank``. The request is sent over gRPC only."""


class Companion(Section):
    """The job beside the server: client and benchmark."""

    enabled: bool = True
    """Without a companion, the server runs until its time limit or ``cancel``."""
    cpus: Count = 1
    """CPUs of the companion."""
    memory_gib: MemoryGib | None = None
    """Memory of the companion; ``all``: all of its node's. ``None`` leaves it to the partition."""
    time_limit_minutes: Minutes = 45
    """Time limit of the companion; it waits for the endpoint until a minute before."""
    start_timeout_seconds: Seconds = 3600
    """Bound on a ready server's wait for the companion's start; then it stops by itself."""
    request: CompanionRequest = Field(default_factory=CompanionRequest)
    benchmark: Benchmark | None = Field(default_factory=Benchmark)
    """The measurement; ``None``: the companion sends its request only."""
    evaluate: Evaluation | None = None
    """Whether the model answers well, asked after the measurement; ``None``: nothing is evaluated."""


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
        """What answers requests."""
        return self.serve.frontend or FRONTENDS[self.engine.backend]

    def with_phase(self, phase: Phase) -> JobFile:
        """The job as one phase of a disaggregated server computes it."""
        llm_api = merged(self.engine.llm_api, phase.llm_api)
        return self.model_copy(
            update={"engine": self.engine.model_copy(update={**phase.differs, "llm_api": llm_api})}
        )

    @property
    def endpoint_wait_s(self) -> int:
        """Bound on the companion's wait for the endpoint, in seconds."""
        return self.companion.time_limit_minutes * 60 - 60

    @property
    def stops_server(self) -> bool:
        """Whether the companion stops the server when it is done."""
        return self.companion.enabled and not self.serve.keep_running


class JobDocument(JobFile):
    """A job file as it is written: a job, and keys that say what it is made from."""

    extends: OneLine | None = None
    """Job file that this one builds on: the name of a shipped one, or a path that starts at this file's
    folder. Sections are merged, lists replaced, and ``null`` removes what the base has."""
    sweep: SweepSection | None = None
    """Variants of the job, for ``trtllm-hpc sweep``."""
