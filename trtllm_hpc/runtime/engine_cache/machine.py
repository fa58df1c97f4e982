"""What is true of the machine that builds: versions, and the GPU's compute capability."""

from __future__ import annotations

from importlib import metadata

from trtllm_hpc.errors import FAIL, WARN
from trtllm_hpc.runtime.checks.engine import planned_version
from trtllm_hpc.runtime.engine_cache.recipe import Recipe
from trtllm_hpc.runtime.gpus import ask_gpus

PACKAGES = ("tensorrt_llm", "tensorrt", "torch", "transformers", "trtllm_hpc")
"""Whose versions are noted with what is built."""


class WrongMachine(Exception):
    """The plan is for another machine or container than this.

    Args:
        hint: what to do about it.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def installed_versions() -> dict[str, str]:
    """Versions of the packages that matter, without importing them."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def check_version(recipe: Recipe, versions: dict[str, str]) -> None:
    """Compare the TensorRT-LLM that is here with the one that the commands are for.

    A candidate or a patch of the same number is told of, and builds: images
    carry such under a release's tag, and a job file can name releases only.

    Raises:
        WrongMachine: it is another.
    """
    planned, found = recipe.tensorrt_llm, versions.get("tensorrt_llm")
    if planned is None or found is None:
        return
    outcome = planned_version(planned, found)
    if outcome.state == FAIL:
        raise WrongMachine(
            f"the plan is for TensorRT-LLM {planned}, but the container holds {found}",
            f"set container.tensorrt_llm_version in the profile to {found.partition('+')[0]}, "
            f"or name the image of {planned}",
        )
    if outcome.state == WARN:
        print(f"warning: {outcome.message}", flush=True)


def compute_capability(recipe: Recipe) -> str | None:
    """The capability that this build's keys carry; ``None`` if no step depends on it.

    Raises:
        WrongMachine: it cannot be told, or is not what the profile says.
    """
    if not any(step.on_gpu for step in recipe.steps):
        return None
    seen, planned = visible_capabilities(), recipe.compute_capability
    if len(seen) > 1:
        raise WrongMachine(
            f"the GPUs that this job sees have different compute capabilities ({', '.join(seen)})",
            "set constraint in the cluster profile so that all nodes have the same GPUs",
        )
    if not seen and planned is None:
        raise WrongMachine(
            "the compute capability of the GPU cannot be read (nvidia-smi shows no GPU to this job)",
            "set build.gpus to 1, or compute_capability in the cluster profile",
        )
    if seen and planned is not None and seen[0] != planned:
        raise WrongMachine(
            f"this node's GPU has compute capability {seen[0]}, but the cluster profile says {planned}",
            "mend compute_capability in the profile, or set constraint to nodes that have it",
        )
    return seen[0] if seen else planned


def visible_capabilities() -> list[str]:
    """Compute capabilities of the GPUs that this job may use, each once."""
    lines = ask_gpus("compute_cap")
    return sorted({line for line in lines if line.replace(".", "", 1).isdigit()})
