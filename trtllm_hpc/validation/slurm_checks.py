"""Checks of Slurm and of the container runtime."""

from __future__ import annotations

import os
import shutil

from trtllm_hpc.errors import Diagnostic, SubmissionError, fail, ok, unknown, warn
from trtllm_hpc.validation.context import CONTROLLER, SRUN, Check, Context

_COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "scancel")


def _on_slurm(context: Context) -> bool:
    return context.cluster.scheduler == "slurm"


def _with_configuration(context: Context) -> bool:
    return _on_slurm(context) and context.cluster.slurm_conf is not None


def _can_ask(context: Context) -> bool:
    """Whether Slurm can be asked; if not, the checks of its commands or of slurm.conf fail."""
    conf = context.cluster.slurm_conf
    return (
        _on_slurm(context)
        and shutil.which("sinfo") is not None
        and (conf is None or os.access(conf, os.R_OK))
    )


def _with_partition(context: Context) -> bool:
    return _on_slurm(context) and context.cluster.partition is not None


def _in_pyxis(context: Context) -> bool:
    return context.cluster.container.runtime == "pyxis"


def _in_apptainer(context: Context) -> bool:
    return context.cluster.container.runtime == "apptainer"


def commands(context: Context) -> Diagnostic:
    """All commands but ``sacct``, which clusters without accounting lack."""
    missing = [name for name in _COMMANDS if shutil.which(name) is None]
    if missing:
        return fail(
            f"no {', '.join(missing)} on this machine",
            "log in to a node of the cluster, or choose a local profile with --cluster local",
        )
    return ok("Slurm's commands are on this machine")


def configuration(context: Context) -> Diagnostic:
    """Slurm's commands need the cluster's slurm.conf."""
    file = context.cluster.slurm_conf or ""
    if not os.access(file, os.R_OK):
        return fail(
            f"the profile names {file}, which cannot be read on this machine",
            "trtllm-hpc sandbox up, if this is the sandbox; else fix slurm_conf in the profile",
        )
    return ok(f"{file} can be read")


def controller(context: Context) -> Diagnostic:
    """Nothing can be submitted while ``slurmctld`` does not answer."""
    try:
        count = len({item.name for item in context.partitions})
    except SubmissionError as error:
        hint = "run scontrol ping; if the controller stays down, tell your site"
        if context.cluster.is_sandbox:
            hint = "trtllm-hpc sandbox up"
        return fail(f"Slurm cannot be asked: {_reason(error)}", hint)
    return ok(f"Slurm's controller answers, with {count} partition{'s' * (count != 1)}")


def mpi_plugin(context: Context) -> Diagnostic:
    """The ranks of a server join through PMIx."""
    wanted = context.cluster.mpi
    try:
        plugins = context.mpi_plugins
    except SubmissionError as error:
        return unknown(f"the MPI plugins cannot be listed: {_reason(error)}", "srun --mpi=list")
    offered = ", ".join(plugins) or "none"
    pmix = [name for name in plugins if name.startswith("pmix")]
    if wanted not in plugins:
        hint = f"set mpi to {pmix[0]} in the profile" if pmix else "ask your site for Slurm's PMIx plugin"
        return fail(f"this Slurm has no MPI plugin {wanted!r}; it offers {offered}", hint)
    if not wanted.startswith("pmix"):
        hint = f"set mpi to {pmix[0]} in the profile" if pmix else "ask your site for Slurm's PMIx plugin"
        return warn(f"NVIDIA's containers join their ranks by PMIx, but the profile says {wanted}", hint)
    return ok(f"this Slurm offers the MPI plugin {wanted}")


def partition(context: Context) -> Diagnostic:
    """The partition exists, and has as many GPUs in a node as the profile says."""
    name = context.cluster.partition
    try:
        found = [item for item in context.partitions if item.name == name]
    except SubmissionError as error:
        return unknown(f"the partitions cannot be listed: {_reason(error)}", "sinfo")
    if not found:
        names = ", ".join(sorted({item.name for item in context.partitions})) or "none"
        return fail(f"there is no partition {name!r}; you may see {names}", "set partition in the profile")
    most, wanted = max(item.gpus_per_node for item in found), context.cluster.gpus_per_node
    if context.cluster.gpu_request != "none" and most < wanted:
        message = f"a node of the partition {name!r} has {most} GPUs, but the profile says {wanted}"
        return fail(message, f"set gpus_per_node to {most} in the profile, or choose another partition")
    return ok(f"the partition {name!r} has {sum(item.nodes for item in found)} nodes of {most} GPUs")


def pyxis(context: Context) -> Diagnostic:
    """``srun`` takes container images only with NVIDIA's plugin."""
    try:
        there = context.has_pyxis
    except SubmissionError as error:
        return unknown(f"srun's options cannot be listed: {_reason(error)}", "srun --help")
    if not there:
        message = "this srun knows no --container-image: Slurm has no pyxis plugin"
        return fail(message, "set container.runtime to apptainer, or ask your site for pyxis")
    return ok("this srun takes container images (pyxis)")


def apptainer(context: Context) -> Diagnostic:
    """Apptainer is called on the compute nodes; login nodes often have it too."""
    if shutil.which("apptainer") is None:
        setup = "; the profile's setup may load it" if context.cluster.setup else ""
        return unknown(f"no apptainer on this machine{setup}", "the compute nodes need it on PATH")
    return ok("apptainer is on this machine")


def _reason(error: SubmissionError) -> str:
    return error.message.strip().rstrip(".")


CHECKS = (
    Check("slurm-commands", "Slurm's commands are on this machine", _on_slurm, commands, SRUN),
    Check("slurm-conf", "the profile's slurm.conf can be read", _with_configuration, configuration, SRUN),
    Check("slurm-controller", "Slurm's controller answers", _can_ask, controller, CONTROLLER),
    Check("mpi-plugin", "Slurm offers PMIx", _on_slurm, mpi_plugin, SRUN),
    Check("partition", "the partition has the profile's GPUs", _with_partition, partition, CONTROLLER),
    Check("pyxis", "srun takes container images", _in_pyxis, pyxis, SRUN),
    Check("apptainer", "apptainer is there", _in_apptainer, apptainer),
)
