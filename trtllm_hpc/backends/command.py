"""Any server with OpenAI's protocol, started by its own command line: vLLM, SGLang, ``transformers serve``...

An instance is one process on its first node, or one process on each of its nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from trtllm_hpc.backends.base import Backend, ServerPlan
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.diagnostics import Diagnostics, in_job, placeholder_problems
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.rules import Requires, Rule
from trtllm_hpc.layout import Instances, Layout
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.server_spec import ServerSpec, expand, literal
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts

ON_NODE = ("address", "port", "node_rank", "leader_address", "leader_port")
"""Placeholders whose values are known only on the node: the server's address and port, the number of the node
within the instance, and the address and port at which the instance's processes find each other."""
_ENGINE_PLACEHOLDERS = ("tensor_parallel", "pipeline_parallel", "max_seq_len", "max_batch_size")
IN_JOB = ("model", "name", *_ENGINE_PLACEHOLDERS)
"""Placeholders that stand for keys of the job file."""
PLACEHOLDERS = (*ON_NODE, *IN_JOB, "nodes", "gpus_per_node")
"""The last two stand for the layout of one instance."""


def _values(job: JobFile, layout: Layout) -> dict[str, str]:
    """Return the values of the placeholders; placeholders known only on the node stay as they are."""
    values = {
        "model": job.model.path,
        "name": job.name,
        **{key: getattr(job.engine, key) for key in _ENGINE_PLACEHOLDERS},
        "nodes": layout.nodes,
        "gpus_per_node": layout.gpus_per_node,
    }
    known = {key: literal(str(value)) for key, value in values.items() if value is not None}
    return known | {key: f"{{{key}}}" for key in ON_NODE}


def command_has_a_port(facts: JobFacts) -> Diagnostics:
    """The command must use the port at which the proxy expects the server."""
    command = facts.job.serve.command
    if command and not any("{port}" in word for word in command):
        message = "has no {port}: the port is chosen on the node, and the server must listen there"
        yield in_job("missing", "serve.command", message, 'add the server\'s option, e.g. "--port", "{port}"')


def placeholders_have_values(facts: JobFacts) -> Diagnostics:
    """Every placeholder of the command is known, and stands for a key that is set."""
    job = facts.job
    known = _values(job, Layout(1, 1, 1, 0))
    keys = {name: "model.path" if name == "model" else f"engine.{name}" for name in IN_JOB}
    unset = {name: key for name, key in keys.items() if name not in known}
    commands = {"serve.command": job.serve.command, "serve.worker_command": job.serve.worker_command or []}
    for field, words in commands.items():
        set_here = [placeholder for placeholder in PLACEHOLDERS if placeholder in known]
        yield from placeholder_problems(field, words, set_here, unset)


def node_rank_is_passed(facts: JobFacts) -> Diagnostics:
    """On several nodes, the command must use {node_rank}, unless workers have a command of their own."""
    job = facts.job
    gpus, instances = facts.cluster.gpus_per_node, job.serve.instances
    is_split = (job.serve.nodes or 1) > instances or (gpus and job.engine.world_size > gpus)
    is_shared = job.serve.worker_command is None
    if is_split and is_shared and not any("{node_rank}" in word for word in job.serve.command):
        message = "an instance has a process on each of its nodes, and nothing gives them their numbers"
        hint = "use {node_rank}, {leader_address} and {leader_port} in it, or set serve.worker_command"
        yield in_job("conflict", "serve.command", message, hint)


class CommandServer(Backend):
    """A server that the job file starts by ``serve.command``."""

    keys: Mapping[str, tuple[str, ...]] = {
        "engine": ("backend", "max_input_len", *_ENGINE_PLACEHOLDERS),
        "repository": (),
        "kv_cache": (),
    }
    unused_hint = "remove it, and write the server's own option into serve.command"
    memory = None
    uses_mpi = False
    own_keys: ClassVar[Mapping[str, str]] = {"serve.command": "", "serve.worker_command": ""}
    rules: tuple[Rule, ...] = (
        Requires("engine.backend", "serve.command",
                 "the backend command needs the server's command line",
                 'set it, e.g. to ["vllm", "serve", "{{model}}", "--host", "{{address}}", '
                 '"--port", "{{port}}"]',
                 code="missing", at="serve.command"),
        *(command_has_a_port, placeholders_have_values, node_rank_is_passed),
    )  # fmt: skip

    def topology(self, job: JobFile, cluster: ClusterProfile) -> Instances:
        """Return one process for each node of an instance, with all the instance's GPUs on that node."""
        ranks = super().topology(job, cluster)
        return replace(ranks, layout=replace(ranks.layout, world_size=ranks.layout.nodes, ranks_per_node=1))

    def servers(self, facts: JobFacts, instances: Instances, paths: RunPaths) -> tuple[ServerPlan, ...]:
        """Return the job file's own command."""
        job = facts.job
        values = _values(job, instances.layout)
        worker = job.serve.worker_command
        spec = ServerSpec(
            driver="openai",
            leader=expand(job.serve.command, values),
            worker=None if worker is None else expand(worker, values),
            model=job.model.path,
            tokenizer=job.model.tokenizer,
            health=Backend.health_path,
        )
        return (ServerPlan(spec),)

    def loaded_model(self, job: JobFile, paths: RunPaths) -> str | None:
        """Return the model's folder."""
        return job.model.path
