"""A plan to the text of its scripts and of its model repository.

Nothing is written here: the same functions serve ``render``, ``submit`` and
the golden tests.
"""

from __future__ import annotations

from trtllm_hpc import __version__
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.render.build_recipe import build_recipe
from trtllm_hpc.render.environment import render_template
from trtllm_hpc.runtime.engine_cache.recipe import Recipe
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe


def render_scripts(plan: Plan) -> dict[str, str]:
    """File name in ``scripts/`` to text, for every script of the run."""
    paths = RunPaths(plan.run_folder)
    files = {f"{stage.name}.sbatch": f"{stage.name}.sbatch.j2" for stage in plan.stages}
    if plan.stage("build") is not None:
        files["build.sh"] = "build.sh.j2"
    files["rank.sh"] = "rank.sh.j2"
    if plan.job.companion.enabled:
        files["companion.sh"] = "companion.sh.j2"
    return {name: _script(plan, paths, template) for name, template in files.items()}


def recipe_of(plan: Plan) -> Recipe:
    """What the engine cache is to build, or to look for.

    The plan must have build steps.
    """
    return build_recipe(plan, _script(plan, RunPaths(plan.run_folder), "build.sh.j2"))


def _script(plan: Plan, paths: RunPaths, template: str) -> str:
    return render_template(
        f"scripts/{template}",
        plan=plan,
        job=plan.job,
        cluster=plan.cluster,
        layout=plan.layout,
        container=plan.cluster.container,
        paths=paths,
        version=__version__,
        stage=plan.stage(template.partition(".")[0]),
    )


def render_repository(plan: Plan) -> dict[str, str]:
    """File name in ``repository/`` to text, for every model that has a template of our own."""
    files: dict[str, str] = {}
    if isinstance(plan.repository, RepositoryRecipe):
        return files
    for model in plan.repository:
        files[f"{model.name}/config.pbtxt"] = render_template(model.config_template, **plan.repository_values)
        # Triton wants a version folder even where nothing stands in it (an ensemble).
        files[f"{model.name}/1/model.py" if model.source else f"{model.name}/1/.keep"] = model.source
    return files
