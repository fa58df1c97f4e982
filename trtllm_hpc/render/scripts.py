"""Render a plan: the text of its scripts and of its model repository, and the recipe of its engine.

Nothing is written here, so ``render``, ``submit`` and the golden tests use the same functions.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from trtllm_hpc import __version__
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import Plan, ServePart
from trtllm_hpc.render.environment import render_template
from trtllm_hpc.runtime.engine_cache.build_recipe import BuildRecipe
from trtllm_hpc.runtime.front import FRONT_RESTARTS
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.runtime.records import INSTANCE_HEADER, OWNER, RELAY_HEADER, SESSION_HEADER

_MARGIN_S = 60
"""Seconds before the job's time limit at which a wait for another build ends, so that the job can report
it."""


def build_recipe(plan: Plan) -> BuildRecipe | None:
    """Return the recipe of the engine for the engine cache; ``None`` if no engine is built."""
    if not plan.build_steps:
        return None
    engine, model, limit_s = plan.job.engine, plan.job.model, plan.job.build.time_limit_minutes * 60
    layout = {"tp": engine.tensor_parallel, "pp": engine.pipeline_parallel, "cp": engine.context_parallel}
    parts = [f"{name} {count}" for name, count in layout.items() if count > 1 or name == "tp"]
    return BuildRecipe(
        engines_folder=plan.engines_folder,
        steps=plan.build_steps,
        model_path=model.path,
        tensorrt_llm=plan.release,
        compute_capability=plan.cluster.compute_capability,
        script_sha256=hashlib.sha256(_script(plan, "build.sh.j2").encode()).hexdigest(),
        wait_seconds=max(limit_s - _MARGIN_S, limit_s / 2),
        # The description of the engine in tables.
        about={
            "model": (model.path or f"synthetic {model.synthetic}").rstrip("/").rpartition("/")[2],
            "backend": engine.backend,
            "version": plan.release or __version__,
            "layout": " ".join(parts),
        },
    )


def render_scripts(plan: Plan) -> dict[str, str]:
    """Return the text of every script of the run, by its name in ``scripts/``."""
    scripts = {f"{stage.name}.sbatch": _script(plan, f"{stage.name}.sbatch.j2") for stage in plan.stages}
    if plan.stage("build") is not None:
        scripts["build.sh"] = _script(plan, "build.sh.j2")
    for group, phase in zip(plan.instances.groups, plan.phases, strict=True):
        scripts[phase.rank_script] = _script(plan, "rank.sh.j2", part=phase)
        scripts[f"instance.{group.role}.sh"] = _script(plan, "instance.sh.j2", "serve", part=phase)
    if not plan.phases:
        scripts[plan.parts[0].rank_script] = _script(plan, "rank.sh.j2")
    if plan.job.serve.prologue:
        scripts["prologue.sh"] = _script(plan, "prologue.sh.j2", "serve")
    if plan.cluster.scheduler == "slurm" and plan.backend.uses_mpi:
        scripts["mpirun.sh"] = _script(plan, "mpirun.sh.j2")
    name = "servers.sh.j2" if plan.phases else "instance.sh.j2"
    scripts["instance.sh"] = _script(plan, name, "serve")
    if plan.has_proxy:
        if plan.phases:
            scripts["front.sh"] = _script(plan, "front.sh.j2", "serve")
        for node in plan.instances.leaders:
            scripts[RunPaths(plan.run_folder).proxy(node).name] = _script(plan, "haproxy.cfg.j2", node=node)
        if len(plan.instances.leaders) > 1:
            scripts["proxy.sh"] = _script(plan, "proxy.sh.j2")
    if plan.job.companion.enabled:
        scripts["companion.sh"] = _script(plan, "companion.sh.j2")
    return scripts


def render_configurations(plan: Plan) -> dict[str, str]:
    """Return the text of every configuration file of the servers, by its name in the run folder."""
    paths, files = RunPaths(plan.run_folder), dict[str, str]()
    roles: list[str | None] = [group.role for group in plan.instances.groups]
    for role, server in zip(roles or [None], plan.servers, strict=True):
        files[paths.server(role).name] = json.dumps(asdict(server.spec), indent=2) + "\n"
        if server.configuration is not None:
            files[paths.llm_api(role).name] = server.configuration
    if plan.front is not None:
        files[paths.front.name] = json.dumps(plan.front.configuration, indent=2) + "\n"
    return files


def render_node_checks(plan: Plan) -> dict[str, str]:
    """Return the scripts of ``doctor --on-nodes``, by name, for a plan from ``node_check_plan``."""
    return {name: _script(plan, f"{name}.j2") for name in ("doctor.sbatch", "mpirun.sh")}


def _script(
    plan: Plan, template: str, stage: str | None = None, *, part: ServePart | None = None, node: int = 0
) -> str:
    """Render a script for all nodes or for a part; the default stage is the template's first name part."""
    return render_template(
        f"scripts/{template}",
        plan=plan,
        job=plan.job,
        part=part or plan.parts[0],
        cluster=plan.cluster if part is None else part.cluster,
        layout=plan.layout if part is None else part.layout,
        paths=RunPaths(plan.run_folder),
        version=__version__,
        stage=plan.stage(stage or template.partition(".")[0]),
        node=node,
        instance_header=INSTANCE_HEADER,
        relay_header=RELAY_HEADER,
        session_header=SESSION_HEADER,
        owner=OWNER,
        exit_code_start=int(ExitCode.START),
        exit_code_measurement=int(ExitCode.MEASUREMENT),
        fronts=[f"front_{start}" for start in range(1 + FRONT_RESTARTS)],
    )


def render_repository(plan: Plan) -> dict[str, str]:
    """Return the text of every file in ``repository/``, by name, for models with this package's templates."""
    files: dict[str, str] = {}
    for model in () if isinstance(plan.repository, RepositoryRecipe) else plan.repository:
        files[f"{model.name}/config.pbtxt"] = render_template(model.config_template, **model.values)
        # Triton requires a version folder, even an empty one (for an ensemble).
        files[f"{model.name}/1/model.py" if model.source else f"{model.name}/1/.keep"] = model.source
    return files
