"""The cluster profile: *where* to run. ``gpus.toml`` beside this file lists kinds of GPU."""

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
"""Folder with the state of sandboxes, ``slurm.conf`` included."""

REAL_GPU = "real"
"""GRES type of a sandbox's GPUs if the machine has them; simulated GPUs have no type."""


def read_table(package: str, name: str) -> dict[str, Any]:
    """Return a TOML file of a package."""
    # Imported late because few profiles need a table.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return dict(toml.loads((resources.files(package) / name).read_text("utf-8")))


@cache
def gpus() -> Mapping[str, Mapping[str, Any]]:
    """Return the profile keys of every kind of GPU in ``gpus.toml``; the memory is that in nvidia-smi."""
    kinds = read_table("trtllm_hpc.config", "gpus.toml")["gpu"].items()
    return {
        name: {
            "gpu_memory_gib": round(kind["memory_mib"] / 1024, 2),
            "compute_capability": kind["compute_capability"],
        }
        for name, kind in kinds
    }


SECRETS = re.compile(r"(.*_)?(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS)", re.IGNORECASE)
"""Names of variables that usually hold secrets."""


class ContainerForm(Section):
    """Form of a command that enters a container; ``runtimes.toml`` has the forms of the named runtimes."""

    place: Literal["command", "srun"] = "command"
    """``command``: words before a step's command. ``srun``: options of ``srun``."""
    words: list[OneLine]
    """Program and arguments, or options. Placeholders: ``{image}``; ``{name}``, of a container that a job's
    steps share; ``{file}``; ``{mounts}`` within a word: all, with commas. ``{gpus}``, ``{mounts}``,
    ``{environment}`` and ``{options}`` alone become several words."""
    gpus: list[OneLine] = Field(default=[])
    """Words for ``{gpus}`` on nodes with GPUs."""
    mount: list[OneLine] = Field(default=[])
    """Words for each mount; ``{mount}`` is ``source:target[:flags]``."""
    mount_variable: VariableName | None = None
    """Environment variable for mounts known only in the job; ``None``: they become words, too."""
    variable: list[OneLine] = Field(default=[])
    """Words for each variable (``{name}``) of ``variables`` and the profile's ``environment``."""
    variables: list[OneLine] = Field(default=[])
    """Variables to pass into the container; ``*`` at the end matches any rest. Empty: the runtime passes
    all."""
    file: list[OneLine] = Field(default=[])
    """Lines of a file (``{file}``) with ``{image}`` and ``{quoted_mounts}``."""
    has_site_folders: bool = False
    """Containers have the site's file systems, so only the profile's mounts are added."""
    cache_variable: VariableName | None = None
    """Environment variable for the folder of pulled images."""
    misread: OneLine = ",:"
    """Characters that a mounted path must not contain."""
    fetch: OneLine = "bring it there once, before the job"
    """Advice in messages: how to make the image available to the nodes."""
    login: OneLine | None = None
    """Command that stores a registry's password; ``None``: enroot's credentials file."""
    source: OneLine | None = None
    """Documentation on which this form is based."""

    def takes(self, placeholder: str) -> bool:
        """Return whether ``words`` or ``file`` contain the placeholder."""
        return any(f"{{{placeholder}}}" in text for text in (*self.words, *self.file))

    @property
    def joins_mounts(self) -> bool:
        """Whether one word, or the file, has all mounts."""
        return self.takes("quoted_mounts") or (self.takes("mounts") and "{mounts}" not in self.words)

    @property
    def program(self) -> str:
        """The program, or the ``srun`` option that shows that its plugin is installed."""
        return self.words[0].partition("=")[0]


@cache
def container_forms() -> Mapping[str, ContainerForm]:
    """Return every container runtime in ``runtimes.toml``, by name."""
    return {
        name: ContainerForm(**entry)
        for name, entry in read_table("trtllm_hpc.config", "runtimes.toml").items()
    }


class Container(Section):
    """The container in which ranks run, if any."""

    runtime: Literal[
        "none", "pyxis", "apptainer", "singularity", "shifter", "podman-hpc", "container-engine", "custom"
    ] = "none"
    """Container runtime. ``none``: the server is installed on the nodes. ``custom``: see ``form``."""
    form: ContainerForm | None = None
    """The runtime of ``runtime: custom``."""
    image: OneLine | None = None
    """Image: a registry name, a ``.sqsh`` or ``.sif`` file, or an environment definition file
    (``container-engine``). ``{tag}`` becomes the tag of Triton's container with the job's release of
    TensorRT-LLM; without a release, the newest."""
    scope: Literal["step", "job", "global"] = "job"
    """How long pyxis keeps an imported image on a node: for a ``step``, a ``job``, or all your jobs
    (``global``; needs pyxis's default ``container_scope=global``)."""
    mounts: list[Annotated[OneLine, Field(pattern=r"^[^,]*$")]] = Field(default=[])
    """Mounts beside the run folder, the engine cache and the job file's folders, as
    ``source:target[:flags]``."""
    python: OneLine = "python3"
    """Python (3.10 or later) inside the image."""
    tensorrt_llm_version: OneLine | None = None
    """Release in an image whose name does not show it, or on the nodes without a container."""
    all_models: AbsolutePath | None = None
    """Folder of TensorRT-LLM's model templates in the image; ``None``: the release's usual folder."""
    examples: AbsolutePath | None = None
    """Folder of TensorRT-LLM's examples (``convert_checkpoint.py``...); ``None``: the release's usual
    folder."""
    cache_folder: AbsolutePath | None = None
    """Shared folder for files that programs in the image compile or download, by user in
    ``.trtllm-hpc-UID``. ``None``, or a node-local folder: the folder of runs. Apptainer and Singularity also
    keep pulled images there."""
    options: list[OneLine] = Field(default=[])
    """Further options of the runtime's program or plugin, one word each."""
    gpu_options: list[OneLine] | None = None
    """Options that pass GPUs on, e.g. ``--rocm`` for AMD; ``None``: the runtime's, such as ``--nv``."""

    @property
    def entry(self) -> ContainerForm | None:
        """Form of a command that enters the container; ``None`` if there is no container."""
        return self.form if self.runtime == "custom" else container_forms().get(self.runtime)


class Triton(Section):
    """Triton's server program."""

    server: OneLine = "tritonserver"
    """Path, name on ``PATH``, or ``pytriton``: the server in the nvidia-pytriton wheel."""
    options: list[OneLine] = Field(default=[])
    """Further options of every rank's ``tritonserver``, one word each."""


class PhaseNodes(Section):
    """Nodes of one phase of disaggregated serving; missing keys have the profile's values."""

    partition: OneLine | None = None
    """Slurm partition."""
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] | None = None
    """GPUs per node."""
    gpu_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    """Slurm's name of the GPUs."""


class Phases(Section):
    """The nodes of both phases of disaggregated serving."""

    context: PhaseNodes = Field(default_factory=PhaseNodes)
    """Nodes of prompt servers and of the front server."""
    generation: PhaseNodes = Field(default_factory=PhaseNodes)
    """Nodes of answer servers."""


class SiteLimits(Section):
    """A site's limits for one run; a job that exceeds them is refused before it is queued."""

    time_minutes: Minutes | None = None
    """Longest time limit of a job."""
    gpus: Annotated[int, Field(ge=0)] | None = None
    """Most GPUs of a run at a time."""
    proxy: Literal["obligatory", "free"] = "free"
    """``obligatory``: every server needs a proxy that checks a key."""
    message: OneLine | None = None
    """Text for refused users: whom to ask, or what to do instead."""


class ClusterProfile(Section):
    """A whole cluster profile."""

    name: JobName
    scheduler: Literal["slurm", "local"] = "slurm"
    """``local``: run the same scripts on this machine, without Slurm."""
    slurm_conf: AbsolutePath | None = None
    """``SLURM_CONF`` for Slurm's commands; ``None``: the machine's default."""
    slurm_cluster: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    """``--clusters`` of Slurm's commands, if a machine serves several clusters (``sacctmgr show
    clusters``)."""
    partition: OneLine | None = None
    """Slurm partition (``sinfo``)."""
    account: OneLine | None = None
    """Slurm account (``sacctmgr show associations user=$USER``)."""
    qos: OneLine | None = None
    """Slurm quality of service."""
    reservation: OneLine | None = None
    """Slurm reservation."""
    constraint: OneLine | None = None
    """Required node features, e.g. ``a100``."""
    exclusive: Annotated[bool | Literal["user", "mcs", "topo"], one_of("true, false, user, mcs or topo")] = (
        False
    )
    """Give the server whole nodes (sbatch's ``--exclusive``); all their memory needs
    ``serve.memory_gib_per_node: all``."""
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs per node."""
    gpu_request: Literal["gpus-per-node", "gpus", "gres", "none"] = "gpus-per-node"
    """Slurm option that requests GPUs; ``gpus`` counts those of all nodes."""
    gpu_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    """Slurm's name of the GPUs, e.g. ``a100``, if a partition has several (``sinfo -o "%P %G"``)."""
    gres: list[Annotated[str, Field(pattern=r"^[^\s,]+$")]] = Field(default=[])
    """Further resources of each serve node, e.g. ``nvme:1000`` or ``tmpfs:200g``."""
    gpu: OneLine | None = None
    """Kind of GPU, e.g. ``h100`` (or ``h100-80gb``): the default of the next two keys."""
    gpu_memory_gib: Annotated[float, Field(gt=0, le=10_000)] | None = None
    """Memory of one GPU, for the memory planner."""
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = None
    """Compute capability of the GPUs, e.g. ``"9.0"``; part of an engine's cache key. ``None``: found in the
    job."""
    mpi: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")] = "pmix"
    """MPI plugin (``srun --mpi=list``). ``mpirun``: Open MPI's own launcher starts the ranks; so it does if
    Slurm has no PMIx plugin."""
    network_interface: OneLine | None = None
    """Network interfaces between nodes (NCCL, gloo), e.g. ``hsn0,hsn1``; the first that has an address gives
    the address. ``None``: the interface that reaches rank 0."""
    python: AbsolutePath | None = None
    """Python (3.10 or later) with this package on the nodes; ``None``: the Python that submits."""
    container: Container = Field(default_factory=Container)
    triton: Triton = Field(default_factory=Triton)
    haproxy: OneLine = "haproxy"
    """HAProxy (2.4 or later) on the nodes, outside containers: a path or a name on ``PATH``. Not needed with
    ``serve.proxy: none``."""
    environment: dict[VariableName, AnyText] = Field(default={})
    """Environment variables of every script. No secrets: scripts are files."""
    setup: list[OneLine] = Field(default=[])
    """Bash lines at the start of every script, e.g. ``module load ...``."""
    sbatch_options: list[Annotated[OneLine, Field(pattern=r"^-")]] = Field(default=[])
    """Further ``#SBATCH`` options of every job, e.g. ``--mail-type=FAIL``. With ``--comment`` the token that
    identifies a lost job is in the job's name: ``chat-serve:TOKEN``."""
    srun_options: list[Annotated[OneLine, Field(pattern=r"^-")]] = Field(default=[])
    """Further ``srun`` options of preflight and server."""
    companion: Literal["job", "overlap"] = "job"
    """``job``: a separate Slurm job. ``overlap``: a step in the server's allocation."""
    companion_partition: OneLine | None = None
    """Partition of the companion job, e.g. without GPUs."""
    download_partition: OneLine | None = None
    """Partition with access to the hub, without GPUs: a first job there downloads hub models. ``None``: the
    machine that submits downloads them."""
    phases: Phases | None = None
    """Nodes of each phase of disaggregated ``trtllm-serve``, as a heterogeneous job. ``None``: both phases
    share nodes."""
    runs_folder: AbsolutePath | None = None
    """Shared folder of run folders; ``None``: ``./runs``. ``$TRTLLM_HPC_RUNS`` and ``runs_folder`` in
    ``~/.config/trtllm-hpc/config.toml`` override it."""
    engines_folder: AbsolutePath | None = None
    """Shared cache folder of built engines; ``None``: ``engines`` beside the folder of runs."""
    models_folder: AbsolutePath | None = None
    """Shared folder of downloaded hub models; ``None``: ``$TRTLLM_HPC_MODELS``, else ``models`` beside the
    folder of runs."""
    node_models_folder: AbsolutePath | None = None
    """Node-local folder for ``model.stage: node``."""
    causes_folder: AbsolutePath | None = None
    """Folder with the site's tables of causes (``*.toml``), which ``status`` and ``explain`` add to their
    own. ``explain`` reports errors in them."""
    node_local_folders: list[AbsolutePath] = Field(
        default_factory=lambda: ["/tmp", "/var/tmp", "/dev/shm", "/run"]
    )
    """Folders that machines do not share, so runs and engines cannot be there. Set ``[]`` if this machine
    is the only node; default of a sandbox: ``/dev/shm``."""
    job_defaults: dict[str, Any] = Field(default={})
    """Defaults of job files on this cluster, over the built-in defaults."""
    limits: SiteLimits = Field(default_factory=SiteLimits)
    """The site's limits for a job file. Only Slurm's limits also apply without this toolkit."""

    @property
    def controller(self) -> tuple[str | None, str | None]:
        """The Slurm controller to ask: ``slurm_conf`` and ``slurm_cluster``."""
        return self.slurm_conf, self.slurm_cluster

    @property
    def is_sandbox(self) -> bool:
        """Whether the cluster is a sandbox, whose nodes run on this machine and share its folders."""
        return self.slurm_conf is not None and PurePosixPath(self.slurm_conf).is_relative_to(SANDBOX_ROOT)

    def for_phase(self, role: str) -> ClusterProfile:
        """Return the profile with the nodes of a phase, ``context`` or ``generation``."""
        if self.phases is None:
            return self
        nodes: PhaseNodes = getattr(self.phases, role)
        return self.model_copy(update={name: value for name, value in nodes if value is not None})

    @classmethod
    def with_defaults(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """Add the keys that follow from the kind of GPU and from a sandbox; a rule refuses unknown GPUs."""
        slurm_conf = plain.get("slurm_conf")
        if isinstance(slurm_conf, str) and PurePosixPath(slurm_conf).is_relative_to(SANDBOX_ROOT):
            plain = {"node_local_folders": ["/dev/shm"], **plain}
        name = plain.get("gpu")
        known = gpus().get(name, {}) if isinstance(name, str) else {}
        chosen = {key: value for key, value in plain.items() if value is not None or key not in known}
        return {**known, **chosen}
