"""Rules of a cluster profile, independent of the job, and the options that a profile must not set."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from trtllm_hpc.config.cluster import SECRETS, ClusterProfile, gpus, read_table
from trtllm_hpc.config.diagnostics import Diagnostics, in_cluster, shown
from trtllm_hpc.config.rules import Excludes, Requires, Rule
from trtllm_hpc.plan.mounts import misread


class Managed(NamedTuple):
    """Options of a program that the toolkit sets itself: an entry of ``managed_options.toml``."""

    options: str
    """Long names of the options, separated by spaces."""
    instead: str
    """Hint: the keys to use instead, or why none is needed."""
    unsaid: str = ""
    """Uses of the option that no key replaces, with the reason."""


_GPUS = "set gpus_per_node, gpu_type and gpu_request in the profile"


@cache
def managed_options() -> Mapping[str, Sequence[Managed]]:
    """Return the options of ``sbatch``, ``srun`` and ``tritonserver`` that the toolkit sets, by program."""
    table = read_table("trtllm_hpc.validation", "managed_options.toml")
    return {program: [Managed(**row) for row in rows] for program, rows in table.items()}


def _hints(program: str) -> dict[str, str]:
    """Return the hint of each managed option, in alphabetical order."""
    rows = managed_options()[program]
    hints = dict(sorted((name, row.instead) for row in rows for name in row.options.split()))
    if program == "srun":
        others = _hints("sbatch").items()
        # srun has nearly all options of sbatch.
        ours = {name: hint for name, hint in others if name not in ("--wrap", "--parsable", "--wait")}
        hints = ours | hints
    return hints


VARIABLES = re.compile(
    r"(SLURM|SBATCH|SRUN|TRTLLM_HPC)_.*|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PMIX_MCA_gds"
)
"""Environment variables that Slurm or the toolkit sets for each rank."""

_SLURM_ONLY = " ".join(
    f"cluster.{key}"
    for key in (
        *("slurm_conf", "slurm_cluster", "partition", "account", "qos", "reservation", "constraint"),
        *("gpu_type", "gres", "exclusive"),
        *("sbatch_options", "srun_options", "companion_partition", "download_partition", "phases"),
    )
)
_OF_CONTAINER = " ".join(
    f"cluster.container.{key}"
    for key in ("image", "mounts", "options", "cache_folder", "gpu_options", "scope!=job")
)
_PLACES = {"scope": "name", "mounts": "mounts", "options": "options", "gpu_options": "gpus"}
"""Keys of ``container`` with the placeholder that a runtime's words need for each."""


def tag_follows_the_release(cluster: ClusterProfile) -> Diagnostics:
    """A profile whose image follows the job's release does not name a release itself."""
    container = cluster.container
    version, image = container.tensorrt_llm_version, container.image or ""
    if container.runtime != "none" and version is not None and "{tag}" in image:
        message = "{tag} in container.image follows each job's release, so the profile cannot name a release"
        hint = "remove container.tensorrt_llm_version, or replace {tag} in container.image"
        yield in_cluster("conflict", "container.tensorrt_llm_version", message, hint, version)


def container_has_no_secret(cluster: ClusterProfile) -> Diagnostics:
    """The image's name and the options contain no password."""
    container = cluster.container
    message = "contains a password, and others can read the scripts of a run"
    if re.match(r"(?:[a-z]+://)?[^/#@]*:[^/#]*@(?!sha256:)", container.image or ""):
        hint = "write USER@ alone, and put the password into ~/.config/enroot/.credentials"
        if container.entry is not None and container.entry.login is not None:
            hint = f"remove the password, and type: {container.entry.login}"
        yield in_cluster("secret", "container.image", message, hint)
    for index, option in enumerate(container.options):
        if any(
            SECRETS.fullmatch(name) for name in re.findall(r"(\w+)=", option.replace("-", "_").lstrip("_"))
        ):
            hint = "let a line of setup read it from a file that only you can read"
            yield in_cluster("secret", f"container.options[{index}]", message, hint)


def container_keys_have_an_effect(cluster: ClusterProfile) -> Diagnostics:
    """The words of the container's runtime have a placeholder for each key that is set."""
    container, entry = cluster.container, cluster.container.entry
    if entry is None:
        return
    for key, placeholder in _PLACES.items():
        value = getattr(container, key)
        taken = entry.takes(placeholder) or (key == "mounts" and entry.joins_mounts)
        if value not in ([], None, "job") and not taken:
            message = f"has no effect with container.runtime {container.runtime}"
            yield in_cluster("conflict", f"container.{key}", message, "remove it", value)
    if not entry.takes("image"):
        message = "has no {image}, so container.image has no effect"
        yield in_cluster("missing", "container.form.words", message, "write {image} in place of the image")
    if entry.place == "srun" and cluster.scheduler == "local":
        message = f"{container.runtime} is a plugin of Slurm's srun, but scheduler is local"
        yield in_cluster("conflict", "container.runtime", message, "set it to none or apptainer")


def mounts_are_whole(cluster: ClusterProfile) -> Diagnostics:
    """A mount is ``source:target[:flags]``, or one folder, with absolute paths."""
    for number, mount in enumerate(cluster.container.mounts):
        parts = mount.split(":")
        if len(parts) > 3 or not all(part.startswith("/") for part in parts[:2]):
            message = f"{shown(mount)} is not a mount: write source:target[:flags] with absolute paths"
            hint = "write e.g. /scratch/models:/models:ro"
            yield in_cluster("bad-value", f"container.mounts[{number}]", message, hint, mount)
        elif bad := sorted(set(mount) & set(misread(cluster)) - {":"}):
            message = f"{shown(mount)} contains {' '.join(bad)}, which {cluster.container.runtime} misreads"
            hint = "mount a folder above it, or rename the folder"
            yield in_cluster("bad-value", f"container.mounts[{number}]", message, hint, mount)


def gpu_is_known(cluster: ClusterProfile) -> Diagnostics:
    """The kind of GPU is in the table of GPUs."""
    if cluster.gpu is not None and cluster.gpu not in gpus():
        message = f"{cluster.gpu!r} is not in the table of GPUs"
        hint = f"choose one of {', '.join(gpus())}, or set gpu_memory_gib and compute_capability instead"
        yield in_cluster("bad-value", "gpu", message, hint, cluster.gpu)


def gres_is_not_of_gpus(cluster: ClusterProfile) -> Diagnostics:
    """``gres`` requests no GPUs: the layout reads only the keys for GPUs."""
    for index, gres in enumerate(cluster.gres):
        if gres.partition(":")[0] == "gpu":
            yield in_cluster("managed", f"gres[{index}]", f"{shown(gres)} requests GPUs", _GPUS, gres)


def interfaces_are_names(cluster: ClusterProfile) -> Diagnostics:
    """Interfaces are whole names, because UCX and sockets do not know prefixes or NCCL's ``=`` and ``^``."""
    value = cluster.network_interface
    if value is not None and not re.fullmatch(r"[\w.:@-]{1,15}(,[\w.:@-]{1,15})*", value):
        message = f"{shown(value)} is not the name of a network interface, or several names with commas"
        yield in_cluster("bad-value", "network_interface", message, "write e.g. hsn0,hsn1", value)


def slurm_options(cluster: ClusterProfile) -> Diagnostics:
    """Extra options of ``sbatch`` and ``srun`` have long names, and the toolkit does not set them itself."""
    yield from _long_options("sbatch_options", cluster.sbatch_options, "sbatch")
    yield from _long_options("srun_options", cluster.srun_options, "srun")
    if (entry := cluster.container.entry) is not None and entry.place == "srun":
        yield from _long_options("container.options", cluster.container.options, "srun")


def _long_options(section: str, options: Sequence[str], program: str) -> Diagnostics:
    for index, option in enumerate(options):
        field = f"{section}[{index}]"
        if re.fullmatch(r"--[A-Za-z][A-Za-z0-9-]*(=.*)?", option):
            yield from _unmanaged(field, option, _hints(program))
        else:
            message = f"{shown(option)} is not of the form --name or --name=value"
            hint = "write one option in each item, with its long name and '=' before the value"
            yield in_cluster("bad-value", field, message, hint, option)


def _unmanaged(field: str, option: str, table: Mapping[str, str]) -> Diagnostics:
    """Refuse an argument that sets a managed option.

    All three programs use ``getopt_long``, which accepts any unambiguous beginning of a name: ``--part=gpu``
    sets the partition, too.
    """
    name = option.partition("=")[0]
    # A bare "--" is the beginning of every name; the caller judges the form of an option.
    longer = [known for known in table if known.startswith(name)] if len(name) > 2 else []
    for managed in [name] if name in table else longer[:1]:
        message = f"{shown(option)} sets {managed}, which the toolkit sets itself"
        yield in_cluster("managed", field, message, table[managed], option)


def triton_options(cluster: ClusterProfile) -> Diagnostics:
    """``triton.options`` leave ports, repository and shared memory to the toolkit."""
    for index, option in enumerate(cluster.triton.options):
        field = f"triton.options[{index}]"
        if option.startswith("--"):
            yield from _unmanaged(field, option, _hints("tritonserver"))
        if "shm-region-prefix-name" in option:
            message = "sets shm-region-prefix-name, which the toolkit sets itself"
            hint = "remove it: the prefix has the job ID and rank, so that jobs can share a node"
            yield in_cluster("managed", field, message, hint, option)


def environment(cluster: ClusterProfile) -> Diagnostics:
    """``environment`` sets no variables of Slurm or the toolkit, and no secrets."""
    for name, value in cluster.environment.items():
        field = f"environment.{name}"
        if VARIABLES.fullmatch(name):
            message = "is set by Slurm or by the toolkit for each rank"
            yield in_cluster("managed", field, message, "remove it", value)
        elif SECRETS.fullmatch(name):
            message = "looks like a secret, and others can read the scripts of a run"
            hint = "let a line of setup read it from a file that only you can read"
            yield in_cluster("secret", field, message, hint)


RULES: tuple[Rule, ...] = (
    Requires("cluster.container.runtime!=none", "cluster.container.image", "{value} needs an image",
             "set container.image, e.g. to a .sqsh or .sif file or a registry name",
             code="missing", at="cluster.container.image"),
    Excludes(_OF_CONTAINER, "cluster.container.runtime=none",
             "is set, but container.runtime is none, so it has no effect",
             "set container.runtime, e.g. to pyxis or apptainer, or remove it"),
    Requires("cluster.container.python!=python3",
             "cluster.container.runtime!=none cluster.container.examples "
             "cluster.container.tensorrt_llm_version",
             "is the Python of an image or of TensorRT-LLM on the nodes, but the profile has neither",
             "set python in the profile, or container.runtime"),
    Requires("cluster.container.form", "cluster.container.runtime=custom",
             "is set, but container.runtime is {cluster.container.runtime}",
             "set container.runtime to custom, or remove it"),
    Requires("cluster.container.runtime=custom", "cluster.container.form", "custom needs container.form",
             "write container.form; docs/how-to/sites.md has an example", code="missing"),
    Excludes(_SLURM_ONLY, "cluster.scheduler=local", "is for Slurm, but scheduler is local",
             "remove it, or set scheduler to slurm"),
    Excludes("cluster.companion=overlap", "cluster.scheduler=local",
             "overlap is a step inside a Slurm allocation, but scheduler is local", "set companion to job"),
    *(tag_follows_the_release, container_has_no_secret, container_keys_have_an_effect, mounts_are_whole),
    *(gpu_is_known, gres_is_not_of_gpus, interfaces_are_names),
    *(slurm_options, triton_options, environment),
)  # fmt: skip
