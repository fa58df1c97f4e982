"""The plan's build steps as the data that the engine cache works from."""

from __future__ import annotations

import hashlib

from trtllm_hpc import __version__
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.runtime.engine_cache.recipe import Recipe

_TO_SAY_SO_S = 60
"""How long before the job's time limit a wait for another build is given up."""


def build_recipe(plan: Plan, script: str) -> Recipe:
    """What ``build.json`` says.

    Args:
        script: text of ``build.sh`` as it is rendered.
    """
    job, cluster = plan.job, plan.cluster
    limit_s = job.build.time_limit_minutes * 60
    return Recipe(
        engines_folder=plan.engines_folder,
        steps=plan.build_steps,
        model_path=job.model.path,
        tensorrt_llm=plan.release,
        compute_capability=cluster.compute_capability,
        script_sha256=hashlib.sha256(script.encode()).hexdigest(),
        wait_seconds=max(limit_s - _TO_SAY_SO_S, limit_s / 2),
        about=_about(plan),
    )


def _about(plan: Plan) -> dict[str, str]:
    """What a table of engines says of this one."""
    engine, model = plan.job.engine, plan.job.model
    layout = {
        "tp": engine.tensor_parallel,
        "pp": engine.pipeline_parallel,
        "cp": engine.context_parallel,
    }
    parts = [f"{name} {count}" for name, count in layout.items() if count > 1 or name == "tp"]
    return {
        "model": model.path.rstrip("/").rpartition("/")[2] if model.path else f"synthetic {model.synthetic}",
        "backend": engine.backend,
        "version": plan.release or __version__,
        "layout": " ".join(parts),
    }
