"""TensorRT-LLM engines, whose last release is 1.2.1: behind Triton in three modes, or with ``trtllm-serve``.

Code that only engines need is in ``engines/``, which is imported when a job has an engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from packaging.version import Version

from trtllm_hpc.backends import tensorrt_llm_rules
from trtllm_hpc.backends.base import Backend, ServedEngine, ServerPlan, TritonBackend
from trtllm_hpc.backends.llm_api import arguments, given
from trtllm_hpc.backends.trtllm_serve import server_plan
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.diagnostics import Diagnostics
from trtllm_hpc.config.engine import Engine, Repository
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.rules import Rule
from trtllm_hpc.layout import Instances, Layout, one_node
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.engine_cache.build_recipe import BuildStep
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.llm_api import engine_backend

if TYPE_CHECKING:
    from trtllm_hpc.engines.facts import EngineFacts

_MPI_KV_CACHE = "0.18.0", "0.20.0"
"""First release, and first later release, between which disaggregated serving needs a variable to send the KV
cache by MPI (upstream's disaggregated_serving/README.md of 0.18.2 and 0.19.0)."""
_NO_POOLS_SINCE = "24.06"
"""Last tag whose orchestrator server may take GPU memory for itself (upstream's ``launch_triton_server.py``,
``check_triton_version``)."""


class EngineBackend(Backend):
    """A backend that loads an engine, behind any server."""

    release_use = "exact"
    checks_paged_context = True
    own_keys: ClassVar[Mapping[str, str]] = {"build.commands": ", which takes no engine of TensorRT-LLM"}

    def facts(self, job: JobFile, cluster: ClusterProfile) -> EngineFacts:
        """Return the facts, including those of the engine."""
        from trtllm_hpc.engines.facts import EngineFacts

        return EngineFacts(job, cluster, self.release_use)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules for engines."""
        from trtllm_hpc.engines import build_rules

        return (
            tensorrt_llm_rules.release_is_known,
            tensorrt_llm_rules.backend_is_there,
            built_model_is_named,
            tensorrt_llm_rules.experts_divide,
            tensorrt_llm_rules.gpu_computes_type,
            *build_rules.RULES,
        )

    def build_steps(self, facts: JobFacts, layout: Layout, python: str) -> tuple[BuildStep, ...]:
        """Return the steps from the model to its engine."""
        if facts.job.engine.directory is not None:
            return ()
        from trtllm_hpc.engines.build_steps import make_steps

        return make_steps(_engine_facts(facts), layout)

    def notes(self, facts: JobFacts) -> tuple[str, ...]:
        """Return notes about what the build's command lines leave out or assume."""
        lines = _engine_facts(facts).command_lines
        return () if lines is None else tuple(lines.notes())

    def served_engines(self, job: JobFile, paths: RunPaths) -> tuple[ServedEngine, ...]:
        """Return the one engine."""
        return (ServedEngine(_engine(job, paths), job.engine.world_size),)


def built_model_is_named(facts: JobFacts) -> Diagnostics:
    """A model must be named, unless a finished engine is."""
    if facts.job.engine.directory is None:
        yield from tensorrt_llm_rules.model_is_named(facts)


class TrtllmServeEngine(EngineBackend):
    """``trtllm-serve`` with an engine."""

    keys: Mapping[str, tuple[str, ...]] = {"repository": (), "kv_cache": tensorrt_llm_rules.KV_CACHE_KEYS}
    unused_hint = tensorrt_llm_rules.UNUSED_HINT

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules for engines, and the LLM API's rules that also apply to engines."""
        own = (tensorrt_llm_rules.server_is_there, tensorrt_llm_rules.llm_api_leaves_the_plan)
        return (*super().rules, *own)

    def servers(self, facts: JobFacts, instances: Instances, paths: RunPaths) -> tuple[ServerPlan, ...]:
        """Return the command of every rank, with the engine and the model's tokenizer."""
        job = facts.job
        known = {
            "model": _engine(job, paths),
            "tokenizer": self.tokenizer(job),
            "backend": engine_backend(facts.release),
            **arguments(job),
        }
        return (server_plan(facts, instances.layout, given(known), {}, paths),)


class TritonEngine(EngineBackend, TritonBackend):
    """An engine behind Triton's C++ or Python backend in leader mode: a server per rank, rank 0 answers."""

    keys: Mapping[str, tuple[str, ...]] = {
        "engine": tuple(key for key in Engine.model_fields if key != "llm_api"),
        "repository": tuple(key for key in Repository.model_fields if key != "models"),
    }

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of engines and of upstream's model repository."""
        from trtllm_hpc.engines.triton_rules import OF_REPOSITORY

        return (*super().rules, *OF_REPOSITORY)

    def repository(self, facts: JobFacts, paths: RunPaths) -> RepositoryRecipe:
        """Return the recipe that fills the release's templates."""
        from trtllm_hpc.engines.template_values import recipe

        assert facts.release is not None
        return recipe(_engine_facts(facts), facts.release, paths)


class Orchestrator(TritonEngine):
    """Orchestrator mode: one server spawns the workers of several copies of the engine."""

    keys: Mapping[str, tuple[str, ...]] = {"engine": TritonEngine.keys["engine"]}

    spawns_workers = True
    worker_models = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the base class, and those for copies."""
        from trtllm_hpc.engines.triton_rules import OF_ORCHESTRATOR

        return (*super().rules, *OF_ORCHESTRATOR)

    def topology(self, job: JobFile, cluster: ClusterProfile) -> Instances:
        """Return a single process, which srun starts with the GPUs of all copies."""
        return Instances(1, 1, one_node(1, _gpus_named(_copies(job), cluster)))

    def served_engines(self, job: JobFile, paths: RunPaths) -> tuple[ServedEngine, ...]:
        """Return the engines of all copies, each engine once."""
        own = _engine(job, paths)
        copies = job.repository.models
        served = [ServedEngine(copy.engine or own, len(copy.gpu_device_ids)) for copy in copies]
        return tuple(dict.fromkeys(served)) or super().served_engines(job, paths)

    def environment(self, facts: JobFacts) -> Mapping[str, str]:
        """Return the variables of this mode."""
        return {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}

    def options(self, facts: JobFacts, layout: Layout) -> Sequence[str]:
        """Return the options that keep the server from taking GPU memory for itself."""
        tags = facts.release.tags if facts.release is not None else ()
        if tags and max(map(Version, tags)) <= Version(_NO_POOLS_SINCE):
            return ()
        pools = (f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(layout.gpus_per_node))
        return ("--pinned-memory-pool-byte-size=0", "--enable-peer-access=false", *pools)


class TritonDisaggregated(TritonEngine):
    """Disaggregated mode: an orchestrator and one rank for each GPU of each phase, on one node."""

    worker_models = ("context", "generation")
    # This mode's models take other requests than the usual ensemble.
    can_have_gateway = False

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the base class, and those for phases."""
        from trtllm_hpc.engines.triton_rules import OF_PHASES

        return (*super().rules, *OF_PHASES)

    def topology(self, job: JobFile, cluster: ClusterProfile) -> Instances:
        """Return the orchestrator's rank and the ranks of the copies."""
        copies = _copies(job)
        ranks = 1 + sum(map(len, copies))
        return Instances(1, 1, one_node(ranks, _gpus_named(copies, cluster)))

    def served_engines(self, job: JobFile, paths: RunPaths) -> tuple[ServedEngine, ...]:
        """Return the engines of both phases, each engine once."""
        phases = job.serve.disaggregated
        if phases is None:
            return super().served_engines(job, paths)
        served = [
            ServedEngine(phase.engine or _engine(job, paths), len(phase.instances[0]))
            for _, phase in phases.roles
        ]
        return tuple(dict.fromkeys(served))

    def environment(self, facts: JobFacts) -> Mapping[str, str]:
        """Return the variables of this mode."""
        fixed = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "0"}
        release, (first, end) = facts.release, _MPI_KV_CACHE
        if release is not None and release.at_least(first) and not release.at_least(end):
            fixed["TRTLLM_USE_MPI_KVCACHE"] = "1"
        return fixed


def _engine_facts(facts: JobFacts) -> EngineFacts:
    from trtllm_hpc.engines.facts import EngineFacts

    assert isinstance(facts, EngineFacts)
    return facts


def _engine(job: JobFile, paths: RunPaths) -> str:
    """Return the folder of the job's own engine."""
    return job.engine.directory or str(paths.engine)


def _copies(job: JobFile) -> list[list[int]]:
    """Return the GPUs of each copy of the engine, in any mode."""
    phases = job.serve.disaggregated
    both = [] if phases is None else phases.context.instances + phases.generation.instances
    return [*(copy.gpu_device_ids for copy in job.repository.models), *both]


def _gpus_named(copies: Sequence[Sequence[int]], cluster: ClusterProfile) -> int:
    """Return the number of GPUs up to the highest that the copies name; 0 on a cluster without GPUs."""
    numbers = (gpu for gpus in copies for gpu in gpus)
    return min(cluster.gpus_per_node, 1 + max(numbers, default=-1))
