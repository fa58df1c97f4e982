"""Job file and cluster profile to plan."""

from __future__ import annotations

from dataclasses import replace

from trtllm_hpc.backends import backend_of
from trtllm_hpc.backends.base import ServerPlan
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.layout import seats
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.plan.stages import make_stages
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts


def make_plan(
    facts: JobFacts,
    paths: RunPaths,
    python: str,
    *,
    engines_folder: str | None = None,
    templates: str | None = None,
) -> Plan:
    """Resolve a job file and a profile into a plan, which depends on these arguments only.

    Args:
        python: the interpreter to use on the nodes when the profile names none.
        engines_folder: the cache of engines; by default ``engines`` beside the folder of runs.
        templates: folder of upstream's model templates, if this machine has the image's.

    The rules have judged both files: what they refuse is not looked for again.
    """
    job, cluster = facts.job, facts.cluster
    backend = backend_of(job)
    assert facts.unknown_release is None, facts.unknown_release
    chosen = cluster.python or python
    task_python = chosen if cluster.container.runtime == "none" else cluster.container.python
    release, engine = facts.release, job.engine.directory or str(paths.engine)
    instances = backend.topology(job, cluster)
    build = backend.build(facts, instances.layout, task_python)
    servers = backend.phase_servers(facts, instances, paths)
    servers = servers or (backend.server(facts, instances.layout, paths),)
    return Plan(
        name=job.name,
        run_folder=str(paths.folder),
        python=chosen,
        task_python=task_python,
        instances=instances,
        servers=tuple(_with_environment(server, job) for server in servers),
        front=backend.front(job),
        release=release.version if release is not None and facts.assumed_release is None else None,
        engines_folder=engines_folder or str(paths.folder.parent.parent / "engines"),
        engine_folder=engine,
        engine_found=None,
        build_steps=build.steps,
        repository=backend.repository(facts, paths),
        repository_values=backend.repository_values(job, engine),
        templates=templates,
        all_models=cluster.container.all_models
        or (release.paths.all_models if release is not None else None),
        stages=make_stages(job, cluster, instances, paths, builds=bool(build.steps)),
        served_engines=backend.served_engines(job, paths),
        facts=facts,
        notes=(*build.notes, *seats(instances), *backend.notes(facts), *_door_notes(job)),
    )


def _with_environment(server: ServerPlan, job: JobFile) -> ServerPlan:
    """Return the server with the variables that the job file sets."""
    environment = {**server.spec.environment, **job.serve.environment}
    return replace(server, spec=replace(server.spec, environment=environment))


def with_engine(plan: Plan, engine: str) -> Plan:
    """Return the plan without its build stage: the engine is in the cache."""
    stages = make_stages(plan.job, plan.cluster, plan.instances, RunPaths(plan.run_folder), builds=False)
    return replace(plan, engine_found=engine, stages=stages)


def _door_notes(job: JobFile) -> tuple[str, ...]:
    if job.serve.door == "none" or job.serve.key:
        return ()
    return ("serve.key is false: everybody who reaches the server's node may call and control the server",)
