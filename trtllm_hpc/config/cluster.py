"""The cluster profile: *where* to run; and what its kinds of GPU are (``gpus.toml`` beside this file)."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field

from trtllm_hpc.config.types import (
    AbsolutePath,
    AnyText,
    JobName,
    Minutes,
    OneLine,
    Section,
    VariableName,
    one_of,
)

SANDBOX_ROOT = PurePosixPath("/run/trtllm-hpc")
"""Where sandboxes keep their state, ``slurm.conf`` included."""

REAL_GPU = "real"
"""GRES type of a sandbox's GPUs if they are the machine's own; GPUs that are only claimed have none."""


def read_table(package: str, name: str) -> dict[str, Any]:
    """Return a TOML file of a package."""
    # Imported here: few profiles name anything that is in a table.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return dict(toml.loads((resources.files(package) / name).read_text("utf-8")))


@cache
def gpus() -> Mapping[str, Mapping[str, Any]]:
    """Every kind of GPU in ``gpus.toml``, by name: the keys of a profile that follow from it.

    The memory is what nvidia-smi shows.
    """
    kinds = read_table("trtllm_hpc.config", "gpus.toml")["gpu"].items()
    return {
        name: {
            "gpu_memory_gib": round(kind["memory_mib"] / 1024, 2),
            "compute_capability": kind["compute_capability"],
        }
        for name, kind in kinds
    }


SECRETS = re.compile(r"(.*_)?(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS)", re.IGNORECASE)
"""Usual names of secrets."""


class ContainerForm(Section):
    """How a command enters a container; ``runtimes.toml`` has it for each runtime that has a name."""

    place: Literal["command", "srun"] = "command"
    """``command``: a program and its arguments, before a step's own command. ``srun``: its options."""
    words: list[OneLine]
    """Placeholders in braces: ``{image}``; ``{name}``, of a container that the steps of a job share;
    ``{file}``; ``{mounts}`` within a word, with commas between them. Alone, ``{gpus}``, ``{mounts}``,
    ``{environment}`` and ``{options}`` become several words."""
    gpus: list[OneLine] = Field(default=[])
    """The words for ``{gpus}``, where the nodes have any."""
    mount: list[OneLine] = Field(default=[])
    """The words for each mount; ``{mount}`` is ``source:target[:flags]``."""
    mount_variable: VariableName | None = None
    """The program's variable for mounts that only the job knows; ``None``: these get words, too."""
    variable: list[OneLine] = Field(default=[])
    """The words for each of ``variables`` and of the profile's ``environment``, ``{name}``."""
    variables: list[OneLine] = Field(default=[])
    """What ranks need of the step's environment; ``*`` after a beginning. Empty: the container gets all."""
    file: list[OneLine] = Field(default=[])
    """Lines of a file, with ``{image}`` and ``{quoted_mounts}``; its path is ``{file}``."""
    has_site_folders: bool = False
    """Whether every container has the site's file systems: then only the profile's mounts are bound."""
    cache_variable: VariableName | None = None
    """The program's variable for the folder of what it pulls from a registry."""
    misread: OneLine = ",:"
    """Characters that a mounted path cannot have."""
    fetch: OneLine = "bring it there once, before the job"
    """How the image comes to where the nodes find it."""
    login: OneLine | None = None
    """The command that takes a registry's password; ``None``: enroot's file of credentials has it."""
    source: OneLine | None = None
    """Where the program's documentation says so."""

    def takes(self, placeholder: str) -> bool:
        """Whether a word, or a line of the file, has this placeholder."""
        return any(f"{{{placeholder}}}" in text for text in (*self.words, *self.file))

    @property
    def joins_mounts(self) -> bool:
        """Whether all mounts are in one word, or in the file."""
        return self.takes("quoted_mounts") or (self.takes("mounts") and "{mounts}" not in self.words)

    @property
    def program(self) -> str:
        """The program, or the option of ``srun`` by which a plugin is known."""
        return self.words[0].partition("=")[0]


@cache
def container_forms() -> Mapping[str, ContainerForm]:
    """Every container runtime in ``runtimes.toml``, by name."""
    return {
        name: ContainerForm(**entry)
        for name, entry in read_table("trtllm_hpc.config", "runtimes.toml").items()
    }


class Container(Section):
    """How ranks enter NVIDIA's container, if they do."""

    runtime: Literal[
        "none", "pyxis", "apptainer", "singularity", "shifter", "podman-hpc", "container-engine", "custom"
    ] = "none"
    """``none``: the server is installed on the nodes. ``custom``: as ``form`` says."""
    form: ContainerForm | None = None
    """Another runtime than those that have a name, for ``runtime: custom``."""
    image: OneLine | None = None
    """What the runtime takes: a registry name, a ``.sqsh`` or a ``.sif`` file, or the name of an environment
    definition file (``container-engine``). ``{tag}`` in it becomes the
    tag of Triton's container with the job's release of TensorRT-LLM, the newest for jobs that state none."""
    scope: Literal["step", "job", "global"] = "job"
    """How long pyxis keeps the imported image on a node: for a ``step``; for all steps of a ``job``; or for
    all your jobs, where pyxis itself is configured with ``container_scope=global``, its default."""
    mounts: list[Annotated[OneLine, Field(pattern=r"^[^,]*$")]] = Field(default=[])
    """``source:target[:flags]``. The run folder, the engine cache and every folder that the job file names
    are always mounted."""
    python: OneLine = "python3"
    """The Python (3.10 or later) inside the image."""
    tensorrt_llm_version: OneLine | None = None
    """What is in the image, where its name does not tell; also for TensorRT-LLM installed on the nodes."""
    all_models: AbsolutePath | None = None
    """Folder of upstream's model templates inside the image, instead of the release's own place."""
    examples: AbsolutePath | None = None
    """Folder of upstream's examples (``convert_checkpoint.py``...), instead of the release's own place."""
    cache_folder: AbsolutePath | None = None
    """Where the image's programs keep what they compile and download for later jobs, each user's in a folder
    ``.trtllm-hpc-UID``; all nodes must see it. ``None``, or a folder that each node has for itself: the runs'
    folder. Apptainer and Singularity also keep there what they pull, instead of in the home folder."""
    options: list[OneLine] = Field(default=[])
    """Further options of the runtime's program, or of ``srun`` where that starts it, one word each."""
    gpu_options: list[OneLine] | None = None
    """What hands the GPUs on, e.g. ``--rocm`` for AMD's; ``None``: the runtime's own, such as ``--nv``."""

    @property
    def entry(self) -> ContainerForm | None:
        """How a command enters the container; ``None`` without one."""
        return self.form if self.runtime == "custom" else container_forms().get(self.runtime)


class Triton(Section):
    """The server program."""

    server: OneLine = "tritonserver"
    """A path, a name on ``PATH``, or ``pytriton`` for the server in the nvidia-pytriton wheel."""
    options: list[OneLine] = Field(default=[])
    """Further options for every rank's ``tritonserver``, one word each."""


class PhaseNodes(Section):
    """What differs on the nodes of one phase of disaggregated serving; what is left out is the profile's."""

    partition: OneLine | None = None
    """Slurm's partition."""
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] | None = None
    """GPUs of one node."""
    gpu_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    """Slurm's name of the GPUs."""


class Phases(Section):
    """The nodes of both phases of disaggregated serving."""

    context: PhaseNodes = Field(default_factory=PhaseNodes)
    """Where prompts are computed, and the front runs."""
    generation: PhaseNodes = Field(default_factory=PhaseNodes)
    """Where answers are computed."""


class SiteLimits(Section):
    """What a site allows one run; beyond it a job is refused before it is in the queue."""

    time_minutes: Minutes | None = None
    """Longest time limit of a job."""
    gpus: Annotated[int, Field(ge=0)] | None = None
    """Most GPUs of a run at the same time."""
    proxy: Literal["obligatory", "free"] = "free"
    """``obligatory``: every server has a proxy that asks for a key."""
    message: OneLine | None = None
    """What users read when a job is refused: whom to ask, or what to do instead."""


class ClusterProfile(Section):
    """A whole cluster profile."""

    name: JobName
    scheduler: Literal["slurm", "local"] = "slurm"
    """``local`` runs the same scripts on this machine, without Slurm."""
    slurm_conf: AbsolutePath | None = None
    """``SLURM_CONF`` for Slurm's commands, if it is not the machine's own."""
    slurm_cluster: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    """The cluster to submit to where one machine serves several (``sacctmgr show clusters`` lists them);
    all of Slurm's commands get it as ``--clusters``."""
    partition: OneLine | None = None
    """Slurm's partition; ``sinfo`` lists them."""
    account: OneLine | None = None
    """``sacctmgr show associations user=$USER`` lists yours."""
    qos: OneLine | None = None
    """Slurm's quality of service."""
    reservation: OneLine | None = None
    """A reservation of nodes."""
    constraint: OneLine | None = None
    """Features that the nodes must have, e.g. ``a100``."""
    exclusive: Annotated[bool | Literal["user", "mcs", "topo"], one_of("true, false, user, mcs or topo")] = (
        False
    )
    """Whether the server has whole nodes for itself; ``user``, ``mcs`` and ``topo`` as sbatch's
    ``--exclusive`` has them. The memory of the nodes comes by ``serve.memory_gib_per_node: all``."""
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs of one node; 0 for a cluster without."""
    gpu_request: Literal["gpus-per-node", "gpus", "gres", "none"] = "gpus-per-node"
    """The option by which GPUs are requested from this site's Slurm; ``gpus`` counts those of all nodes."""
    gpu_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    """Slurm's name of the GPUs, such as ``a100``, where a partition has several (``sinfo -o "%P %G"``)."""
    gres: list[Annotated[str, Field(pattern=r"^[^\s,]+$")]] = Field(default=[])
    """What each node of the serve job gets beside its GPUs, such as ``nvme:1000`` or ``tmpfs:200g``."""
    gpu: OneLine | None = None
    """Kind of the GPUs, e.g. ``h100`` (or ``h100-80gb``); gives the two keys below their defaults."""
    gpu_memory_gib: Annotated[float, Field(gt=0, le=10_000)] | None = None
    """Memory of one GPU, for the memory planner."""
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = None
    """Of the GPUs, e.g. ``"9.0"``; part of an engine's key in the cache. ``None``: read in the job."""
    mpi: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")] = "pmix"
    """MPI plugin: one of those in ``srun --mpi=list``. Where a PMIx plugin is not among them, Open MPI's own
    launcher joins the ranks in the job; ``mpirun``: in any case."""
    network_interface: OneLine | None = None
    """Network interface between the nodes (NCCL, gloo), or several with commas between them, such as
    ``hsn0,hsn1``: addresses are of the first that has one. ``None``: the one that reaches rank 0."""
    python: AbsolutePath | None = None
    """A Python (3.10 or later) on the nodes with this package; ``None``: the Python that submits."""
    container: Container = Field(default_factory=Container)
    triton: Triton = Field(default_factory=Triton)
    haproxy: OneLine = "haproxy"
    """HAProxy (2.4 or later) on the nodes, outside any container: a path, or a name on ``PATH``. Not needed
    with ``serve.proxy: none`` in job files."""
    environment: dict[VariableName, AnyText] = Field(default={})
    """Variables set in every script. No secrets: scripts are files."""
    setup: list[OneLine] = Field(default=[])
    """Lines of bash at the start of every script, e.g. ``module load ...``."""
    sbatch_options: list[Annotated[OneLine, Field(pattern=r"^-")]] = Field(default=[])
    """Further ``#SBATCH`` options for every job, e.g. ``--mail-type=FAIL``. With a ``--comment`` the token by
    which a lost job is found is in the job's name: ``chat-serve:TOKEN``."""
    srun_options: list[Annotated[OneLine, Field(pattern=r"^-")]] = Field(default=[])
    """Further options for the preflight's and the server's ``srun``."""
    companion: Literal["job", "overlap"] = "job"
    """``job``: a Slurm job of its own. ``overlap``: a step inside the server's allocation."""
    companion_partition: OneLine | None = None
    """Partition of the companion job, e.g. one without GPUs."""
    download_partition: OneLine | None = None
    """Partition without GPUs whose nodes reach the hub: ``submit`` then downloads a model of a hub in a job
    there, before all others. ``None``: the machine on which you submit downloads it."""
    phases: Phases | None = None
    """Nodes for each phase of disaggregated ``trtllm-serve``: the serve job is then heterogeneous, with a
    component for each. ``None``: both phases share nodes that are alike."""
    runs_folder: AbsolutePath | None = None
    """Where run folders are made, on a file system that the nodes share; ``None``: ``./runs``. A user's own
    ``$TRTLLM_HPC_RUNS``, or ``runs_folder`` in ``~/.config/trtllm-hpc/config.toml``, goes before it."""
    engines_folder: AbsolutePath | None = None
    """The cache of built engines, on a file system that the nodes share; ``None``: ``engines`` beside the
    folder of runs."""
    models_folder: AbsolutePath | None = None
    """Where models of a hub are downloaded to, on a file system that the nodes share; ``None``:
    ``$TRTLLM_HPC_MODELS``, else ``models`` beside the folder of runs."""
    node_models_folder: AbsolutePath | None = None
    """Folder on a disk that each node has for itself, for ``model.stage: node`` in job files."""
    causes_folder: AbsolutePath | None = None
    """Folder of the site's own tables of causes (``*.toml``), beside those that ``status`` and ``explain``
    know. ``explain`` prints what is wrong in them."""
    node_local_folders: list[AbsolutePath] = Field(
        default_factory=lambda: ["/tmp", "/var/tmp", "/dev/shm", "/run"]
    )
    """Folders that every machine has for itself: the nodes cannot see runs and engines there. Empty for a
    cluster whose only node is this machine; a sandbox has ``/dev/shm`` only."""
    job_defaults: dict[str, Any] = Field(default={})
    """Defaults for job files on this cluster: over the built-in defaults, below the job file."""
    limits: SiteLimits = Field(default_factory=SiteLimits)
    """What a job file may ask for. Slurm's own limits bind also whoever does not use this toolkit."""

    @property
    def controller(self) -> tuple[str | None, str | None]:
        """Where Slurm's commands ask: ``slurm_conf`` and ``slurm_cluster``."""
        return self.slurm_conf, self.slurm_cluster

    @property
    def is_sandbox(self) -> bool:
        """Whether the nodes are those of a sandbox, which run on this machine and see its folders."""
        return self.slurm_conf is not None and PurePosixPath(self.slurm_conf).is_relative_to(SANDBOX_ROOT)

    def for_phase(self, role: str) -> ClusterProfile:
        """Return the profile as the nodes of a phase have it, ``context`` or ``generation``."""
        if self.phases is None:
            return self
        nodes: PhaseNodes = getattr(self.phases, role)
        return self.model_copy(update={name: value for name, value in nodes if value is not None})

    @classmethod
    def with_defaults(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """Fill in what the kind of GPU answers (a rule refuses an unknown kind), and a sandbox's folders."""
        slurm_conf = plain.get("slurm_conf")
        if isinstance(slurm_conf, str) and PurePosixPath(slurm_conf).is_relative_to(SANDBOX_ROOT):
            plain = {"node_local_folders": ["/dev/shm"], **plain}
        name = plain.get("gpu")
        known = gpus().get(name, {}) if isinstance(name, str) else {}
        return {**known, **{key: it for key, it in plain.items() if it is not None or key not in known}}
