"""Discover a cluster's partitions and MPI plugins, for ``init cluster`` and ``doctor``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.errors import SubmissionError

TIMEOUT_S = 15.0
"""Timeout of each command in seconds: Slurm's commands wait for minutes if the controller is down."""
_SLICE = re.compile(r"\d+g\.\d+gb")
"""NVIDIA's name of a MIG profile, in the GRES type of its slices (gres.conf(5), AutoDetect)."""
_GPU_NAME = re.compile(r"gpu|(?<![a-z])(?:a|b|h|l|v|gb|gh|mi)\d{2,3}", re.IGNORECASE)


@dataclass(frozen=True)
class Partition:
    """One kind of node in a partition; a partition with two kinds of nodes gives two objects."""

    name: str
    is_default: bool
    nodes: int
    gpus_per_node: int
    cpus: str
    """CPUs of a node; ``8+`` if nodes differ."""
    memory_mib: str
    time_limit: str
    gpu_type: str = ""
    """The GRES type of the GPUs, e.g. ``a100``; empty if this Slurm names none."""
    slices: int = 0
    """Number of GPU slices (MIG) on each node, if it has no whole GPU."""

    def __str__(self) -> str:
        default = " (default)" if self.is_default else ""
        gpus = "no GPU" if not self.gpus_per_node else f"GPUs: {self.gpus_per_node}"
        if self.slices:
            gpus = f"slices of GPUs (MIG): {self.slices} of type {self.gpu_type}"
        nodes, memory = f"{self.nodes} node{'s' * (self.nodes != 1)}", f"{self.memory_mib} MiB"
        size = f"{nodes}, {gpus}, {self.cpus} CPUs, {memory}"
        return f"{self.name}{default}: {size}, time limit {self.time_limit}"

    @property
    def hides_gpus(self) -> bool:
        """Whether the name suggests GPUs but the GRES has none, as on sites that give whole nodes."""
        return not self.gpus_per_node and not self.slices and _GPU_NAME.search(self.name) is not None

    @property
    def rank(self) -> tuple[bool, bool, bool]:
        """Suitability for a server; smaller is better: whole GPUs, then slices, then a name of GPUs."""
        return self.gpus_per_node == 0, self.slices == 0, not self.hides_gpus


@dataclass(frozen=True)
class SlurmFacts:
    """Partitions, MPI plugins and pyxis of a cluster, and the best choices among them."""

    partitions: tuple[Partition, ...]
    mpi_plugins: tuple[str, ...]
    slurm_conf: str | None
    """Value of ``SLURM_CONF`` when the commands ran."""
    has_pyxis: bool = False
    """Whether ``srun`` itself can start containers."""

    @property
    def chosen(self) -> Partition | None:
        """The default partition, or the first partition with GPUs if the default has none."""
        return min(
            self.partitions, key=lambda partition: (partition.rank, not partition.is_default), default=None
        )

    @property
    def candidates(self) -> tuple[str, ...]:
        """Names of the partitions that fit equally well, including the chosen partition."""
        if (best := self.chosen) is None:
            return ()
        names = (partition.name for partition in self.partitions if partition.rank == best.rank)
        return tuple(dict.fromkeys(names))

    @property
    def chosen_mpi(self) -> str | None:
        """The PMIx plugin, preferably under its plain name."""
        return next(iter(pmix_of(self.mpi_plugins)), None)


@dataclass(frozen=True)
class DefaultMemory:
    """Memory of a job that requests none (slurm.conf(5), DefMemPerCPU and DefMemPerNode)."""

    key: str
    """The key in Slurm's configuration."""
    mib: int
    """MiB for each CPU of the job, or on each node."""

    @classmethod
    def read(cls, text: str) -> DefaultMemory | None:
        """Read the output of ``scontrol show partition`` or ``show config``; ``None``: no limit."""
        match = re.search(r"\b(DefMemPer(?:CPU|Node))\s*=\s*(\d+)\b", text)
        return cls(match[1], int(match[2])) if match else None

    def on_node(self, cpus: int) -> int:
        """Return the MiB on a node of a job that has ``cpus`` CPUs there."""
        return self.mib * (cpus if self.key == "DefMemPerCPU" else 1)


@dataclass(frozen=True)
class PartitionLimits:
    """Limits of a partition for one job. Slurm accepts a job that requests more, but never starts it."""

    name: str
    is_default: bool
    state: str
    """``UP``, ``DOWN``, ``DRAIN`` or ``INACTIVE``."""
    nodes: int | None
    """Largest number of nodes for a job, from ``TotalNodes`` and ``MaxNodes``. ``None``: not known."""
    minutes: int | None
    """Longest time limit in minutes; ``None``: no limit."""
    accounts: frozenset[str] | None
    """Accounts that may use the partition; ``None``: all."""
    groups: frozenset[str] | None
    """Unix groups that may use the partition; ``None``: all."""
    is_shared: bool = True
    """Whether other users' jobs may run on the nodes of a job."""
    memory: DefaultMemory | None = None
    """Memory of a job that requests none; ``None``: the cluster's default."""


def query_cluster() -> SlurmFacts:
    """Query ``sinfo`` and ``srun`` for the cluster of this machine.

    Raises SubmissionError if a command is missing, fails, or does not answer in time.
    """
    slurm_conf = os.environ.get("SLURM_CONF")
    return SlurmFacts(query_partitions(), query_mpi_plugins(), slurm_conf, srun_knows("--container-image"))


def query_partitions(slurm_conf: str | None = None, clusters: str | None = None) -> tuple[Partition, ...]:
    """Return the partitions that this user may see; raises like :func:`query_cluster`."""
    partitions = []
    command = ["sinfo", "--noheader", "--format=%P|%D|%G|%c|%m|%l"]
    for line in _output(command, slurm_conf, clusters).splitlines():
        fields = [field.strip() for field in line.split("|")]
        # Other lines are warnings.
        if len(fields) == 6 and fields[1].isdigit():
            name, nodes, gres, cpus, memory, limit = fields
            entries = dict(_gpu_entries(gres))
            slices = {kind: count for kind, count in entries.items() if _SLICE.search(kind)}
            # The type of the first whole GPUs that have a type or, without whole GPUs, of the largest slices.
            whole = [kind for kind in entries if kind not in slices]
            kind = next(filter(None, whole), "") if whole else max(slices, default="")
            size = (int(nodes), gpus_in(gres), cpus, memory, limit, kind, slices.get(kind, 0))
            partitions.append(Partition(name.rstrip("*"), name.endswith("*"), *size))
    return tuple(partitions)


def query_limits(slurm_conf: str | None = None, clusters: str | None = None) -> tuple[PartitionLimits, ...]:
    """Return the limits of the partitions that this user may see; raises like :func:`query_cluster`."""
    lines = _output(["scontrol", "--oneliner", "show", "partition"], slurm_conf, clusters).splitlines()
    partitions = []
    for line in lines:
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if "PartitionName" in fields:
            most = [fields.get(key, "") for key in ("TotalNodes", "MaxNodes")]
            limits = PartitionLimits(
                name=fields["PartitionName"],
                is_default=fields.get("Default") == "YES",
                state=fields.get("State", "UP"),
                nodes=min((int(number) for number in most if number.isdigit()), default=None),
                minutes=minutes_of(fields.get("MaxTime", "")),
                accounts=_names(fields.get("AllowAccounts", "ALL")),
                groups=_names(fields.get("AllowGroups", "ALL")),
                is_shared=fields.get("OverSubscribe") != "EXCLUSIVE" and fields.get("ExclusiveUser") != "YES",
                memory=DefaultMemory.read(line),
            )
            partitions.append(limits)
    return tuple(partitions)


def query_default_memory(slurm_conf: str | None = None, clusters: str | None = None) -> DefaultMemory | None:
    """Return the whole cluster's default; ``None``: no limit. Raises like :func:`query_cluster`."""
    return DefaultMemory.read(_output(["scontrol", "show", "config"], slurm_conf, clusters))


def query_architecture(
    partition: str | None, slurm_conf: str | None = None, clusters: str | None = None
) -> str | None:
    """Return the architecture of a partition's first node, such as ``aarch64``, if it is known."""
    chosen = [] if partition is None else [f"--partition={partition}"]
    nodes = _output(["sinfo", "--noheader", "--Node", *chosen, "--format=%N"], slurm_conf, clusters).split()
    shown = _output(["scontrol", "show", "node", nodes[0]], slurm_conf, clusters) if nodes else ""
    return found[1] if (found := re.search(r"\bArch=(\w+)", shown)) else None


def query_mpi_plugins(slurm_conf: str | None = None) -> tuple[str, ...]:
    """Return the MPI plugins of ``srun``; needs no controller. Raises like :func:`query_cluster`."""
    plugins: list[str] = []
    for line in _output(["srun", "--mpi=list"], slurm_conf).splitlines():
        # Each line has a plugin, or exact versions after "available:".
        text = line.removeprefix("srun:").strip()
        versions = text.partition("available:")[2]
        names = versions.split(",") if versions else [text]
        plugins += [name.strip() for name in names if re.fullmatch(r"[a-z][a-z0-9_]*", name.strip())]
    return tuple(dict.fromkeys(name for name in plugins if name != "none"))


def pmix_of(plugins: Iterable[str]) -> list[str]:
    """Return the plugins that are PMIx servers, including ParaStation's ``pspmix``; plain ``pmix`` first."""
    return sorted((name for name in plugins if "pmix" in name), key=lambda name: (name[:4] != "pmix", name))


def srun_knows(option: str, slurm_conf: str | None = None) -> bool:
    """Return whether ``srun``, with its plugins, has this long option; raises like :func:`query_cluster`."""
    return re.search(rf"{option}(?![\w-])", _output(["srun", "--help"], slurm_conf)) is not None


def query_pyxis_scope(slurm_conf: str | None = None) -> str | None:
    """Return pyxis' ``container_scope`` (``job`` or ``global``), from the ``plugstack.conf`` of this machine.

    ``None``: no readable file on this machine loads pyxis.
    """
    conf = slurm_conf or os.environ.get("SLURM_CONF")
    folders = [Path(conf).parent] if conf else [Path("/etc/slurm"), Path("/run/slurm/conf")]
    lines = (line for folder in folders for line in _plugin_lines(folder / "plugstack.conf"))
    if (pyxis := next((line for line in lines if "pyxis" in line), None)) is None:
        return None
    scopes = re.findall(r"container_scope=(\w+)", pyxis)
    return scopes[-1] if scopes else "global"  # the default in pyxis_config_parse (config.c)


def _plugin_lines(file: Path) -> Iterator[str]:
    """Yield each line that loads a plugin, including those of included files (spank(8), CONFIGURATION)."""
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.partition("#")[0].split()
            if len(words) > 1 and words[0] == "include":
                pattern = file.parent / words[1]
                for included in sorted(pattern.parent.glob(pattern.name)):
                    yield from _plugin_lines(included)
            else:
                yield " ".join(words)


def _output(command: Sequence[str], slurm_conf: str | None = None, clusters: str | None = None) -> str:
    """Return stdout and stderr of a command: depending on its version, ``srun --mpi=list`` uses either."""
    from trtllm_hpc.scheduler.slurm import run_command  # imported here because `render` does not need it

    done = run_command(command, slurm_conf, clusters, timeout_s=TIMEOUT_S)
    output = done.stdout + done.stderr
    if done.returncode != 0:
        last = (output.strip().splitlines() or ["no message"])[-1]
        raise SubmissionError(f"{command[0]} failed: {last.rstrip('.')}.")
    return output


def _names(text: str) -> frozenset[str] | None:
    return None if text == "ALL" else frozenset(text.split(","))


def minutes_of(text: str) -> int | None:
    """Return the whole minutes of a time in sbatch(1)'s format; ``None`` for ``UNLIMITED``."""
    from trtllm_hpc.config.types import seconds_in

    with suppress(ValueError):
        return int(seconds_in(text, 60) // 60)
    return None


def gpus_in(gres: str) -> int:
    """Count the whole GPUs in a GRES list such as ``gpu:a100:4(S:0-1),tmp:100``; ``(null)`` has none."""
    return sum(count for kind, count in _gpu_entries(gres) if not _SLICE.search(kind))


def _gpu_entries(gres: str) -> Iterator[tuple[str, int]]:
    """Yield type (may be empty) and count of each GPU entry in a GRES list."""
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = item.strip().split(":")
        if name == "gpu":
            counted = bool(rest) and rest[-1].isdigit()
            # sinfo omits a count of 1.
            yield ":".join(rest[: -1 if counted else None]), int(rest[-1]) if counted else 1
