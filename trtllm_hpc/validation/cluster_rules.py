"""What is wrong with a profile's fields together, whatever the job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.diagnostics import Diagnostics, in_cluster, shown
from trtllm_hpc.validation.job_rules import LONGEST_WORD
from trtllm_hpc.validation.managed import SBATCH, SECRETS, SRUN, TRITON, VARIABLES, managed_by

_SLURM_ONLY = (
    "slurm_conf",
    "partition",
    "account",
    "qos",
    "reservation",
    "constraint",
    "exclusive",
    "sbatch_options",
    "srun_options",
    "companion_partition",
)


def container_has_image(cluster: ClusterProfile) -> Diagnostics:
    """A runtime needs an image, and an image needs a runtime."""
    container = cluster.container
    if container.runtime != "none":
        if container.image is None:
            hint = "set container.image, e.g. to a .sqsh or .sif file or a registry name"
            yield in_cluster("missing", "container.image", f"{container.runtime} needs an image", hint)
        elif "{tag}" in container.image and container.tensorrt_llm_version is not None:
            message = "{tag} in the image follows each job's release, so the profile cannot state one"
            hint = "remove container.tensorrt_llm_version, or write the image's tag out"
            value = container.tensorrt_llm_version
            yield in_cluster("conflict", "container.tensorrt_llm_version", message, hint, value)
        return
    for key in ("image", "mounts", "options"):
        value = getattr(container, key)
        if value:
            message = "is set, but container.runtime is none: nothing would use it"
            hint = "set container.runtime to pyxis or apptainer, or remove it"
            yield in_cluster("conflict", f"container.{key}", message, hint, value)


def mounts_are_whole(cluster: ClusterProfile) -> Diagnostics:
    """A mount is source:target[:flags], or one folder, by absolute paths."""
    for number, mount in enumerate(cluster.container.mounts):
        parts = mount.split(":")
        if len(parts) > 3 or not all(part.startswith("/") for part in parts[:2]):
            message = f"{shown(mount)} is no mount: source:target[:flags], both by absolute paths"
            hint = "write e.g. /scratch/models:/models:ro"
            yield in_cluster("bad-value", f"container.mounts[{number}]", message, hint, mount)


def gpu_is_known(cluster: ClusterProfile) -> Diagnostics:
    """A kind of GPU is named as the table of GPUs names it."""
    if cluster.gpu is None:
        return
    from trtllm_hpc.config.cluster import gpus

    if cluster.gpu not in gpus():
        message = f"{cluster.gpu!r} is not in the table of GPUs"
        hint = f"choose one of {', '.join(gpus())}, or set gpu_memory_gib and compute_capability instead"
        yield in_cluster("bad-value", "gpu", message, hint, cluster.gpu)


def local_has_no_slurm(cluster: ClusterProfile) -> Diagnostics:
    """What only Slurm understands must not be lost without a word."""
    if cluster.scheduler != "local":
        return
    for key in _SLURM_ONLY:
        value = getattr(cluster, key)
        if value:
            hint = "remove it, or set scheduler to slurm"
            yield in_cluster("conflict", key, "is for Slurm, but scheduler is local", hint, value)
    if cluster.companion == "overlap":
        message = "overlap is a step inside a Slurm allocation, but scheduler is local"
        yield in_cluster("conflict", "companion", message, "set companion to job", "overlap")
    if cluster.container.runtime == "pyxis":
        message = "pyxis is a part of Slurm's srun, but scheduler is local"
        yield in_cluster("conflict", "container.runtime", message, "set it to none or apptainer", "pyxis")


def slurm_options(cluster: ClusterProfile) -> Diagnostics:
    """Further options must be whole, and not those that the toolkit sets."""
    yield from _long_options("sbatch_options", cluster.sbatch_options, SBATCH)
    yield from _long_options("srun_options", cluster.srun_options, SRUN)
    if cluster.container.runtime == "pyxis":
        yield from _long_options("container.options", cluster.container.options, SRUN)


def _long_options(section: str, options: Sequence[str], table: Mapping[str, str]) -> Diagnostics:
    for index, option in enumerate(options):
        field = f"{section}[{index}]"
        if re.fullmatch(r"--[A-Za-z][A-Za-z0-9-]*(=.*)?", option):
            yield from _unmanaged(field, option, table)
        else:
            message = f"{shown(option)} is not of the form --name or --name=value"
            hint = "write one option in each item, by its long name and with '=' before a value"
            yield in_cluster("bad-value", field, message, hint, option)


def _unmanaged(field: str, option: str, table: Mapping[str, str]) -> Diagnostics:
    managed = managed_by(option, table)
    if managed is not None:
        name, hint = managed
        message = f"{shown(option)} sets {name}, which the toolkit sets itself"
        yield in_cluster("managed", field, message, hint, option)


def triton_options(cluster: ClusterProfile) -> Diagnostics:
    """``tritonserver``'s ports, repository and shared memory are the toolkit's."""
    for index, option in enumerate(cluster.triton.options):
        field = f"triton.options[{index}]"
        if option.startswith("--"):
            yield from _unmanaged(field, option, TRITON)
        if "shm-region-prefix-name" in option:
            message = "sets shm-region-prefix-name, which the toolkit sets itself"
            hint = "leave it out: the prefix carries job id and rank, so that jobs can share a node"
            yield in_cluster("managed", field, message, hint, option)


def environment(cluster: ClusterProfile) -> Diagnostics:
    """Variables that ranks get from elsewhere, secrets, and what no process can be given."""
    for name, value in cluster.environment.items():
        field = f"environment.{name}"
        if VARIABLES.fullmatch(name):
            yield in_cluster(
                "managed", field, "is set by Slurm or by the toolkit for each rank", "remove it", value
            )
        elif SECRETS.fullmatch(name):
            message = "looks like a secret, and the scripts of a run are files"
            hint = "read it in a line of setup from a file that only you can read"
            yield in_cluster("secret", field, message, hint)
        if len(value.encode()) > LONGEST_WORD:
            hint = f"keep it below {LONGEST_WORD} bytes"
            yield in_cluster("too-large", field, "is longer than a variable can be", hint)


RULES: Sequence[Callable[[ClusterProfile], Diagnostics]] = (
    container_has_image,
    mounts_are_whole,
    gpu_is_known,
    local_has_no_slurm,
    slurm_options,
    triton_options,
    environment,
)
