"""What ``doctor --on-nodes`` runs for a plan: a small job of its own, and what that job is to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath

from trtllm_hpc.layout import Instances, Layout
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.plan.resolve import node_check_stage
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.runtime.node_checks.exchange import Wanted
from trtllm_hpc.runtime.server_spec import ServerSpec, expand

_YAML = "1/model.yaml"
_ADDRESS = {"address": "127.0.0.1", "port": 8000}
"""Stands for the address that a server gets in its job."""


def node_check_plan(plan: Plan, nodes: int) -> Plan:
    """Return the plan of the checks' job: two ranks on one node, or one on each of two.

    On a cluster with nodes for each phase it runs on those of the context phase.
    """
    facts = replace(plan.facts, cluster=plan.facts.cluster.for_phase("context"))
    per_node = 2 // nodes
    gpus = min(per_node, facts.cluster.gpus_per_node) if plan.layout.gpus_per_node else 0
    layout = Layout(world_size=2, nodes=nodes, ranks_per_node=per_node, gpus_per_node=gpus)
    stage = node_check_stage(facts.job, facts.cluster, layout, RunPaths(plan.run_folder))
    return replace(plan, facts=facts, instances=Instances(1, 1, layout), stages=(stage,))


def wanted_of(plan: Plan, checked: Plan) -> Wanted:
    """Return what the job is to look at.

    Args:
        plan: the job file's own.
        checked: what :func:`node_check_plan` made of it.
    """
    cluster, layout = checked.cluster, checked.layout
    models = plan.repository.models if isinstance(plan.repository, RepositoryRecipe) else ()
    front_file = f"--config_file={RunPaths(plan.run_folder).front_started}"
    return Wanted(
        release=plan.release,
        has_tensorrt_llm=plan.backend.release_use != "none",
        programs=[list(words) for words in _programs(plan)],
        launcher=plan.server.spec.launcher,
        serve={role: expand(spec.leader[1:], _ADDRESS) for role, spec in _serve_specs(plan)},
        model_yaml=next((text for it in models for name, text in it.files.items() if name == _YAML), None),
        front=[] if plan.front is None else [*plan.front.command[1:], front_file],
        gpus_per_node=layout.gpus_per_node if cluster.gpu_request != "none" else 0,
        ranks=layout.world_size,
        nodes=layout.nodes,
        tries_network=checked.tries_network,
        network_interface=cluster.network_interface,
        haproxy=cluster.haproxy if plan.has_proxy else None,
        mpi=None if cluster.mpi == "mpirun" else cluster.mpi,
    )


def _serve_specs(plan: Plan) -> Iterator[tuple[str, ServerSpec]]:
    """Yield each ``trtllm-serve`` with the phase that it computes."""
    roles = [group.role for group in plan.instances.groups] or ["serve"]
    for role, server in zip(roles, plan.servers, strict=True):
        if server.spec.driver == "openai" and plan.backend.release_use != "none":
            yield role, server.spec


def _programs(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yield the program and the options, without values, of every command line in the image."""
    commands = (command for step in plan.build_steps for command in step.commands)
    for arguments in commands:
        words = [word for word in arguments if isinstance(word, str)]
        count = 2 if PurePath(words[0]).name.startswith("python") else 1
        if words[count - 1] != str(RunPaths(plan.run_folder).runtime):  # not upstream's
            yield (*words[:count], *(word for word in words[count:] if word.startswith("--")))
    for _, spec in _serve_specs(plan):
        yield (spec.leader[0], "serve", *_options(spec))
    if plan.front is not None:
        name, command, *options = plan.front.command
        yield (name, command, *options, "--config_file")
    elif plan.server.spec.driver == "triton" and plan.backend.release_use != "none":
        yield (plan.cluster.triton.server, *_options(plan.server.spec))


def _options(spec: ServerSpec) -> list[str]:
    return [word for word in spec.leader[1:] if word.startswith("--")]
