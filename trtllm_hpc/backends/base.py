"""The interface of a way of serving a model; each way is a subclass in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.rules import Rule
from trtllm_hpc.layout import Instances, Layout, place
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.engine_cache.build_recipe import BuildStep
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.runtime.proxy import OPENAI_KINDS, TRITON_KINDS
from trtllm_hpc.runtime.server_spec import ServerSpec, literal
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts, ReleaseUse
from trtllm_hpc.tensorrt_llm.memory import MemoryModel


@dataclass(frozen=True)
class RepositoryModel:
    """A model of Triton's repository whose template belongs to this package."""

    name: str
    config_template: str
    """Template of ``config.pbtxt``, relative to the templates folder."""
    source: str
    """Text of ``1/model.py``; empty for an ensemble."""
    values: Mapping[str, str | int | bool]
    """Values for the template."""


@dataclass(frozen=True)
class ServedEngine:
    """An engine that ranks of the server load."""

    folder: str
    ranks: int
    """Number of ranks that the engine is built for."""


@dataclass(frozen=True)
class ServerPlan:
    """A server of the run."""

    spec: ServerSpec
    """Content of ``server.json``."""
    configuration: str | None = None
    """Text of the file with the LLM API's configuration, which ``trtllm-serve`` reads."""


@dataclass(frozen=True)
class FrontPlan:
    """The process in front of the servers of a disaggregated run."""

    command: tuple[str, ...]
    """Command line, without the option for the configuration file."""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    """Content of the configuration file, without the addresses, which are known only once the servers are
    ready."""


class Backend:
    """One way of serving a model: what is loaded, and what answers requests.

    Attributes describe what a backend has and needs; methods return the rest. Defaults suit a server with
    OpenAI's protocol; a backend that loads a checkpoint overrides ``loaded_model``.
    """

    own_keys: ClassVar[Mapping[str, str]] = {}
    """Keys that exist only for backends that list them; the value ends the sentence that refuses the key."""
    keys: Mapping[str, tuple[str, ...]] = {}
    """Keys of ``engine``, ``repository`` and ``kv_cache`` that have an effect; in a section that is not
    listed, every key has an effect that no rule refuses."""
    unused_hint = "remove it"
    """Advice for a key of these sections without effect."""

    release_use: ReleaseUse = "none"
    """The facts about TensorRT-LLM's release that the backend needs; ``none``: it uses no upstream files."""
    memory: MemoryModel | None = MemoryModel()
    """The memory planner's estimate of buffers and the KV cache; ``None``: no estimate."""
    needs_gpus = True
    """Whether the backend needs GPUs."""
    uses_mpi = True
    """Whether MPI joins the ranks."""
    spawns_workers = False
    """Whether one server starts the workers of all ranks by MPI."""
    meets_in_folder = False
    """Whether the ranks of an instance find each other through files in a folder of their own."""
    launcher: str | None = None
    """Program that joins the ranks of a server on Slurm."""

    has_tokenizer = False
    """Whether the engine brings its own tokenizer."""
    checks_paged_context = False
    """Whether reuse and chunked context need an engine whose prompts are computed over a paged cache."""
    text_model: str | None = None
    """Triton's model that takes and returns text; ``None`` if the server has only one model."""
    request_protocol: Literal["openai", "grpc"] = "openai"
    """Protocol of the companion's first request."""
    can_have_gateway = False
    """Whether this package's gateway can serve OpenAI's protocol behind the proxy."""
    why_no_logits: str | None = "OpenAI's protocol returns no logits"
    """Why requests cannot ask for logits; ``None``: they can."""
    why_no_adapters: str | None = "OpenAI's protocol takes no weights of LoRA adapters"
    """Why requests cannot carry weights of LoRA adapters; ``None``: they can."""
    proxy_kinds: tuple[str, ...] = OPENAI_KINDS
    """Protocols for which the proxy listens, without the gateway's."""
    health_path = "/health"
    """Path at which the proxy checks whether a server is ready."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules for job files with this backend, in the order in which they are checked."""
        return ()

    def facts(self, job: JobFile, cluster: ClusterProfile) -> JobFacts:
        """Return the facts that follow from the job file and the profile together."""
        return JobFacts(job, cluster, self.release_use)

    def topology(self, job: JobFile, cluster: ClusterProfile) -> Instances:
        """Return the distribution of servers and ranks over nodes and GPUs."""
        serve = job.serve
        return place(
            serve.instances,
            job.engine.world_size,
            nodes=serve.nodes,
            gpus_per_node=cluster.gpus_per_node,
            spread=serve.placement == "spread" and cluster.scheduler != "local",
        )

    def build_steps(self, facts: JobFacts, layout: Layout, python: str) -> tuple[BuildStep, ...]:
        """Return the build stage's steps in order; the server loads the output of the last step.

        ``python`` runs the steps, in the container if there is one. Without steps there is no build stage.
        """
        return ()

    def notes(self, facts: JobFacts) -> tuple[str, ...]:
        """Return notes for the user about the build and the server, without any fault."""
        return ()

    def servers(self, facts: JobFacts, instances: Instances, paths: RunPaths) -> tuple[ServerPlan, ...]:
        """Return the server that every instance runs; for a disaggregated run, the server of each phase."""
        raise NotImplementedError

    def front(self, job: JobFile) -> FrontPlan | None:
        """Return the process in front of the servers of a disaggregated run; ``None`` for other runs."""
        return None

    def repository(self, facts: JobFacts, paths: RunPaths) -> tuple[RepositoryModel, ...] | RepositoryRecipe:
        """Return the models of Triton's repository, or the recipe that fills upstream's templates."""
        return ()

    def served_engines(self, job: JobFile, paths: RunPaths) -> tuple[ServedEngine, ...]:
        """Return the engines that the preflight checks."""
        return ()

    def loaded_model(self, job: JobFile, paths: RunPaths) -> str | None:
        """Return the folder of the checkpoint that the server loads itself."""
        return None

    def tokenizer(self, job: JobFile) -> str | None:
        """Return the folder of the tokenizer; ``None``: the engine brings its own, or none is named."""
        return None if self.has_tokenizer else job.model.tokenizer or job.model.path

    def paged_context_key(self, job: JobFile) -> str | None:
        """Return the key that requires an engine with paged context attention, if any."""
        if self.checks_paged_context and job.kv_cache.enable_block_reuse:
            return "kv_cache.enable_block_reuse"
        is_chunked = self.checks_paged_context and job.engine.enable_chunked_prefill
        return "engine.enable_chunked_prefill" if is_chunked else None


class TritonBackend(Backend):
    """A backend behind a Triton server."""

    proxy_kinds = TRITON_KINDS
    health_path = "/v2/health/ready"
    text_model = "ensemble"
    request_protocol: Literal["openai", "grpc"] = "grpc"
    can_have_gateway = True
    why_no_logits: str | None = None
    why_no_adapters: str | None = None
    worker_models: tuple[str, ...] = ("tensorrt_llm",)
    """Models that ranks above 0 load."""

    def servers(self, facts: JobFacts, instances: Instances, paths: RunPaths) -> tuple[ServerPlan, ...]:
        """Return ``tritonserver``: rank 0 loads the whole repository, other ranks load ``worker_models``."""
        triton, kinds = facts.cluster.triton, ("http", "grpc", "metrics")
        program = literal(triton.server)
        common = [
            "--model-repository={repository}",
            "--disable-auto-complete-config",
            # The prefix has the job and the rank, because two jobs or two ranks may share a node.
            "--backend-config=python,shm-region-prefix-name={prefix}",
            *(() if instances.layout.gpus_per_node else ("--allow-gpu-metrics=false",)),
            *map(literal, (*self.options(facts, instances.layout), *triton.options)),
        ]
        if facts.job.serve.proxy != "none":
            listens = [f"--{kind}-address=unix:{{sockets}}/{kind}" for kind in kinds]
        else:
            listens = [f"--{kind}-port={{{kind}_port}}" for kind in kinds]
            if facts.cluster.scheduler == "local":
                listens += [f"--{kind}-address={{address}}" for kind in kinds]
        explicit = ["--model-control-mode=explicit"]
        explicit += [f"--load-model={model}" for model in self.worker_models]
        closed = ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"]
        spec = ServerSpec(
            driver="triton",
            leader=[program, *common, *listens],
            # A worker stays in the loading of its model as long as it works, and needs no port.
            worker=[program, *common, *explicit, *closed],
            environment=dict(self.environment(facts)),
            launcher=self.launcher if facts.cluster.scheduler == "slurm" else None,
        )
        return (ServerPlan(spec),)

    def environment(self, facts: JobFacts) -> Mapping[str, str]:
        """Return the environment variables of every rank."""
        return {}

    def options(self, facts: JobFacts, layout: Layout) -> Sequence[str]:
        """Return further options of every rank's server."""
        return ()
