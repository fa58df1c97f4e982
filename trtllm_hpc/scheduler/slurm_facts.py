"""What the live Slurm says about itself, to start a cluster profile from."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.errors import SubmissionError

ANSWER_SECONDS = 15.0
"""Bound on each question; a controller that is down makes Slurm's commands wait for minutes."""


@dataclass(frozen=True)
class Partition:
    """One kind of node in one partition; a partition with two kinds makes two of these."""

    name: str
    is_default: bool
    nodes: int
    gpus_per_node: int
    cpus: str
    """CPUs of a node; ``8+`` where nodes differ."""
    memory_mib: str
    time_limit: str

    def __str__(self) -> str:
        default = " (default)" if self.is_default else ""
        gpus = "no GPU" if not self.gpus_per_node else f"GPUs: {self.gpus_per_node}"
        nodes = f"{self.nodes} node{'s' * (self.nodes != 1)}"
        memory = f"{self.memory_mib} MiB"
        return (
            f"{self.name}{default}: {nodes}, {gpus}, {self.cpus} CPUs, {memory}, time limit {self.time_limit}"
        )


@dataclass(frozen=True)
class SlurmFacts:
    """Partitions and MPI plugins of a cluster, and what to choose of them."""

    partitions: tuple[Partition, ...]
    mpi_plugins: tuple[str, ...]
    slurm_conf: str | None
    """``SLURM_CONF``, where the answers came by it."""

    @property
    def chosen(self) -> Partition | None:
        """The default partition; the first one with GPUs where the default has none."""
        order = sorted(self.partitions, key=lambda it: (it.gpus_per_node == 0, not it.is_default))
        return order[0] if order else None

    @property
    def chosen_mpi(self) -> str | None:
        """The PMIx plugin, by its plain name where there is one."""
        pmix = sorted(name for name in self.mpi_plugins if name.startswith("pmix"))
        return pmix[0] if pmix else None


def ask_slurm() -> SlurmFacts:
    """Ask ``sinfo`` and ``srun``.

    Raises:
        SubmissionError: a command is missing, fails, or does not answer in time.
    """
    return SlurmFacts(ask_partitions(), ask_mpi_plugins(), os.environ.get("SLURM_CONF"))


def ask_partitions(slurm_conf: str | None = None) -> tuple[Partition, ...]:
    """Partitions that this person may see; raises as :func:`ask_slurm`."""
    return _partitions(_answer(["sinfo", "--noheader", "--format=%P|%D|%G|%c|%m|%l"], slurm_conf))


def ask_mpi_plugins(slurm_conf: str | None = None) -> tuple[str, ...]:
    """MPI plugins of ``srun``, without asking the controller; raises as :func:`ask_slurm`."""
    return _plugins(_answer(["srun", "--mpi=list"], slurm_conf))


def has_pyxis(slurm_conf: str | None = None) -> bool:
    """Whether ``srun`` takes container images (NVIDIA's pyxis plugin); raises as :func:`ask_slurm`."""
    return "--container-image" in _answer(["srun", "--help"], slurm_conf)


def _answer(command: Sequence[str], slurm_conf: str | None = None) -> str:
    """Both outputs of a command: ``srun --mpi=list`` writes to either, by version."""
    if slurm_conf is not None and not Path(slurm_conf).is_file():
        # Slurm's commands would look for it in the network, for a long time.
        raise SubmissionError(f"There is no {slurm_conf} on this machine.")
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER_SECONDS,
            encoding="utf-8",
            errors="replace",
            check=False,
            env={**os.environ, "SLURM_CONF": slurm_conf} if slurm_conf else None,
        )
    except FileNotFoundError:
        raise SubmissionError(f"There is no {command[0]} on this machine.") from None
    except OSError as error:
        raise SubmissionError(f"{command[0]} cannot be run: {error.strerror}.") from None
    except subprocess.TimeoutExpired:
        message = f"{command[0]} did not answer within {ANSWER_SECONDS:.0f} s."
        raise SubmissionError(message, transient=True) from None
    if done.returncode != 0:
        last = (done.stdout.strip().splitlines() or ["no message"])[-1]
        raise SubmissionError(f"{command[0]} failed, saying: {last.rstrip('.')}.")
    return done.stdout


def _partitions(text: str) -> tuple[Partition, ...]:
    found = []
    for line in text.splitlines():
        fields = line.split("|")
        # Warnings may stand between the lines.
        if len(fields) != 6 or not fields[1].strip().isdigit():
            continue
        name, nodes, gres, cpus, memory, limit = (field.strip() for field in fields)
        found.append(
            Partition(name.rstrip("*"), name.endswith("*"), int(nodes), gpus_in(gres), cpus, memory, limit)
        )
    return tuple(found)


def gpus_in(gres: str) -> int:
    """GPUs in a GRES list such as ``gpu:a100:4(S:0-1),tmp:100``; ``(null)`` has none."""
    total = 0
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = item.strip().split(":")
        if name == "gpu":
            # sinfo leaves the count out where it is 1.
            total += int(rest[-1]) if rest and rest[-1].isdigit() else 1
    return total


def _plugins(text: str) -> tuple[str, ...]:
    """Plugins in ``srun --mpi=list``: one a line, and exact versions after 'available:'."""
    found: list[str] = []
    for line in text.splitlines():
        words = line.removeprefix("srun:").strip()
        versions = words.partition("available:")[2]
        names = versions.split(",") if versions else [words]
        found += [name.strip() for name in names if re.fullmatch(r"[a-z][a-z0-9_]*", name.strip())]
    return tuple(dict.fromkeys(name for name in found if name != "none"))
