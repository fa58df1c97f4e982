"""Checks of Slurm and of the container runtime."""

from __future__ import annotations

import grp
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trtllm_hpc.config.cluster import REAL_GPU, ClusterProfile
from trtllm_hpc.errors import OK, WARN, ConfigError, Diagnostic, SubmissionError, fail, ok, unknown, warn
from trtllm_hpc.runtime.plan_record import Resources
from trtllm_hpc.scheduler.discovery import (
    PartitionLimits,
    pmix_of,
    query_architecture,
    query_mpi_plugins,
    query_pyxis_scope,
    srun_knows,
)
from trtllm_hpc.validation.context import CONTROLLER, LIMITS, SRUN, Check, Context

_ELF_MACHINES = {0x3E: "x86_64", 0xB7: "aarch64", 0x15: "ppc64le"}
"""``e_machine`` in the header of a program (elf(5)), as ``uname -m`` and Slurm call it."""
_COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "scancel")


def commands(context: Context) -> Diagnostic | None:
    """All commands but ``sacct``, which clusters without accounting lack."""
    missing = [name for name in _COMMANDS if shutil.which(name) is None]
    if missing:
        message = f"no {', '.join(missing)} on this machine"
        hint = "log in to a node of the cluster, or choose a local profile with --cluster local"
        return fail(message, hint)
    return ok("Slurm's commands are on this machine")


def configuration(context: Context) -> Diagnostic | None:
    """Slurm's commands need the cluster's slurm.conf."""
    file = context.cluster.slurm_conf
    if file is None:
        return None
    if not os.access(file, os.R_OK):
        message = f"the profile names {file}, which cannot be read on this machine"
        hint = "trtllm-hpc sandbox up, if this is the sandbox; else fix slurm_conf in the profile"
        return fail(message, hint)
    return ok(f"{file} can be read")


def controller(context: Context) -> Diagnostic | None:
    """Nothing can be submitted while ``slurmctld`` does not answer."""
    if not context.can_ask_slurm:
        return None
    try:
        count = len({item.name for item in context.slurm.partitions})
    except SubmissionError as error:
        hint = "run scontrol ping; if the controller stays down, tell your site"
        if context.cluster.is_sandbox:
            hint = "trtllm-hpc sandbox up"
        return fail(f"Slurm cannot be asked: {_reason(error)}", hint)
    return ok(f"Slurm's controller answers, with {count} partition{'s' * (count != 1)}")


def mpi_plugin(context: Context) -> Diagnostic | None:
    """The ranks of a server join through PMIx."""
    wanted = context.cluster.mpi
    try:
        plugins = query_mpi_plugins(context.cluster.slurm_conf)
    except SubmissionError as error:
        return unknown(f"the MPI plugins cannot be listed: {_reason(error)}", "srun --mpi=list")
    pmix = pmix_of(plugins)
    hint = f"set mpi to {pmix[0]} in the profile" if pmix else "ask your site for Slurm's PMIx plugin"
    if wanted == "mpirun":
        return ok("Open MPI's mpirun joins the ranks")
    if wanted not in plugins:
        message = f"this Slurm has no MPI plugin {wanted!r}; it offers {', '.join(plugins) or 'none'}"
        if pmix or not pmix_of([wanted]):
            return fail(message, hint)
        instead = "Open MPI's mpirun joins the ranks instead: the image, or the node, needs Open MPI 4"
        return warn(f"{message}. {instead}", f"{hint}; or set mpi to mpirun in the profile")
    if not pmix_of([wanted]):
        return warn(f"NVIDIA's containers join their ranks by PMIx, but the profile says {wanted}", hint)
    return ok(f"this Slurm offers the MPI plugin {wanted}")


def partition(context: Context) -> Diagnostic | None:
    """The partitions exist, and have as many GPUs in a node as the profile says."""
    cluster = context.cluster
    phases = () if cluster.phases is None else ("context", "generation")
    if context.has_job:
        if len(context.plan.parts) == 1:
            phases = ()
        else:  # the server is on the phases' nodes
            cluster = cluster.model_copy(update={"gpus_per_node": 0, "gpu_type": None})
    answers = [_partition(context, cluster, "")]
    for keys in ("companion_", "download_"):
        update = {"partition": getattr(cluster, f"{keys}partition"), "gpus_per_node": 0, "gpu_type": None}
        answers.append(_partition(context, cluster.model_copy(update=update), keys))
    answers += [_partition(context, context.cluster.for_phase(it), f"phases.{it}.") for it in phases]
    found = [answer for answer in answers if answer is not None]
    wrong = next((answer for answer in found if answer.state != OK), None)
    return wrong or (ok("; ".join(dict.fromkeys(answer.message for answer in found))) if found else None)


def _partition(context: Context, cluster: ClusterProfile, keys: str) -> Diagnostic | None:
    """Judge the partition of a profile, or of one phase, whose keys in the profile begin with ``keys``."""
    name = cluster.partition
    if name is None:
        return None
    wanted_names = name.split(",")
    try:
        found = [item for item in context.slurm.partitions if item.name in wanted_names]
    except SubmissionError as error:
        return unknown(f"the partitions cannot be listed: {_reason(error)}", "sinfo")
    absent = [it for it in wanted_names if it not in {item.name for item in found}]
    if absent:
        names = ", ".join(sorted({item.name for item in context.slurm.partitions})) or "none"
        message = f"there is no partition {absent[0]!r}; you may see {names}"
        return fail(message, f"set {keys}partition in the profile, or --set cluster.{keys}partition=NAME")
    kind = cluster.gpu_type
    if kind is not None and kind not in {item.gpu_type for item in found}:
        kinds = ", ".join(sorted({item.gpu_type for item in found} - {""})) or "none by a type"
        message = f"the partition {name!r} has no GPUs of type {kind!r}; it has {kinds}"
        return fail(message, f"set {keys}gpu_type in the profile to one of these, or remove it")
    found = [item for item in found if kind in (None, item.gpu_type)]
    most, wanted = max(item.gpus_per_node or item.slices for item in found), cluster.gpus_per_node
    gpus = f"{most} GPU{'s' * (most != 1)}"
    if cluster.gpu_request != "none" and most < wanted:
        message = f"a node of the partition {name!r} has {gpus}, but the profile says {wanted}"
        hint = f"set {keys}gpus_per_node to {most} in the profile, or choose another partition"
        if cluster.is_sandbox:
            hint = f"--set cluster.{keys}gpus_per_node={most}"
        return fail(message, hint)
    nodes = sum(item.nodes for item in found)
    source = ""
    if cluster.is_sandbox and most:
        real = any(item.gpu_type == REAL_GPU for item in found)
        source = ", the machine's own" if real else ", claimed: there is no GPU behind them"
    return ok(f"the partition {name!r} has {nodes} node{'s' * (nodes != 1)} of {gpus}{source}")


def limits(context: Context) -> Diagnostic | None:
    """Every stage asks for no more than its partition allows: beyond that Slurm lets a job wait for ever."""
    if not context.can_ask_slurm:
        return None
    try:
        asked = [
            (stage, number, component, context.slurm.limits_of(component))
            for stage in context.plan.stages
            for number, component in enumerate(stage.components)
        ]
    except SubmissionError as error:
        return unknown(f"the partitions' limits cannot be read: {_reason(error)}", "scontrol show partition")
    for stage, number, component, allowed in asked:
        phase = context.plan.instances.groups[number].role if len(stage.components) > 1 else None
        found = [_beyond(stage.name, phase, component, most) for most in allowed]
        if found and found[0] is not None and all(found):  # of several partitions one is enough
            # A QOS may lift its partition's limits (sacctmgr(1), PartitionMaxNodes, PartitionTimeLimit).
            return found[0] if component.qos is None else replace(found[0], state=WARN)
    return ok("every stage asks for no more than its partition allows")


def architecture(context: Context) -> Diagnostic | None:
    """The Python of the jobs is a program for the nodes' processors, which may not be this machine's."""
    cluster = context.cluster
    if not context.can_ask_slurm:
        return None
    with suppress(SubmissionError, OSError):  # other checks say what is wrong
        python = Path(cluster.python or sys.executable)
        with python.open("rb") as file:
            header = file.read(20)
        built_for = _ELF_MACHINES.get(int.from_bytes(header[18:20], "little"))
        nodes = query_architecture(cluster.partition, *cluster.controller)
        if nodes is None or built_for is None or header[:4] != b"\x7fELF":
            return None
        if nodes != built_for:
            message = f"the nodes' processors are {nodes}, but {python} is a program for {built_for}"
            hint = f"install this package on a {nodes} node, and set python in the profile to its Python"
            return fail(message, hint)
        return ok(f"the Python of the jobs is for the nodes' processors ({nodes})")
    return None


def default_memory(context: Context) -> Diagnostic | None:
    """A server that asks for no memory gets enough for its weights, which pass through the node's memory."""
    serve = context.plan.stage("serve")
    if context.model_folder is None or serve is None or not context.can_ask_slurm:
        return None
    with suppress(ConfigError, SubmissionError):  # other checks say what is wrong
        # Imported here: `submit` of a job without a model needs neither.
        from trtllm_hpc.tensorrt_llm.job_facts import Checkpoint
        from trtllm_hpc.tensorrt_llm.memory import gib

        size = Checkpoint(context.model_folder).stored or 0
        for asked in serve.components if serve.first.memory_gib is None else ():
            ranks = asked.tasks_per_node or 1
            weights = size * ranks // context.job.engine.world_size
            for partition in context.slurm.limits_of(asked):
                given = partition.memory or context.slurm.default_memory
                if given is None or (has := given.on_node(asked.cpus_per_task * ranks) * 2**20) >= weights:
                    continue
                each = f"{ranks} ranks x {asked.cpus_per_task} CPUs x " if "CPU" in given.key else ""
                message = (
                    f"serve asks for no memory, and the partition {partition.name!r} gives {gib(has)} on a "
                    f"node ({each}{given.key}={given.mib}), but the weights there are {gib(weights)}"
                )
                return warn(message, "set serve.memory_gib_per_node in the job file, e.g. to all")
        return ok("the server gets as much of the nodes' memory as its weights take")
    return None


def neighbours(context: Context) -> Diagnostic | None:
    """No other user shares a node with a server that listens at 127.0.0.1 and asks for no key."""
    is_reachable = context.job.frontend == "openai" and not context.cluster.exclusive
    if not is_reachable or not context.can_ask_slurm:
        return None
    serve = context.plan.stage("serve")
    try:
        known = [it for asked in serve.components for it in context.slurm.limits_of(asked)] if serve else []
    except SubmissionError:
        return None  # the check of the limits says why
    if not any(item.is_shared for item in known):
        return None
    return warn(
        "other users' jobs may run on the server's nodes, and reach it at 127.0.0.1 there without a key",
        "set exclusive: true in the cluster profile, if that matters",
    )


def _beyond(stage: str, phase: str | None, asked: Resources, most: PartitionLimits) -> Diagnostic | None:
    """Return what a stage, or a phase of it, asks for beyond a partition's limits; ``None`` if it fits."""
    where, who = f"the partition {most.name!r}", f"stage {stage}"
    key, fewer = "partition", f"set serve.nodes to {most.nodes} or less"
    if stage == "companion":
        key = "companion_partition"
    elif phase is not None:
        key, fewer = f"phases.{phase}.partition", f"lower serve.disaggregated.{phase}.servers"
        who = f"the phase {phase} of stage {stage}"
    elsewhere = f"set {key} in the profile"
    if most.nodes is not None and asked.nodes > most.nodes:
        has = f"{most.nodes} node{'s' * (most.nodes != 1)}"
        message = f"{who} asks for {asked.nodes} nodes, but {where} gives a job at most {has}"
        return fail(message, f"{fewer}, or {elsewhere}")
    if most.minutes is not None and asked.minutes > most.minutes:
        message = f"{who} asks for {asked.minutes} minutes, but {where} allows {most.minutes}"
        return fail(message, f"set {stage}.time_limit_minutes to {most.minutes} or less, or {elsewhere}")
    if asked.account is not None and most.accounts is not None and asked.account not in most.accounts:
        message = f"{where} of {who} does not take the account {asked.account!r}"
        return fail(message, f"set account in the profile to one of {', '.join(sorted(most.accounts))}")
    if most.groups is not None and os.getuid() != 0 and not most.groups & _own_groups():
        message = f"{where} of {who} is only for the groups {', '.join(sorted(most.groups))}"
        return fail(message, f"ask your site, or {elsewhere}")
    if most.state != "UP":
        message = f"{where} of {who} is {most.state}: nothing starts there"
        return warn(message, f"wait, ask your site, or {elsewhere}")
    return None


def _own_groups() -> set[str]:
    names = set()
    for number in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):
            names.add(grp.getgrgid(number).gr_name)
    return names


def container_program(context: Context) -> Diagnostic | None:
    """The runtime's program is on this machine, or its option in ``srun``."""
    container = context.cluster.container
    if container.entry is None:
        return None
    program = container.entry.program
    if container.entry.place == "command":
        if shutil.which(program):
            return ok(f"{program} is on this machine")
        message = f"there is no {program} on this machine; the nodes may have it, or a line of setup loads it"
        return warn(message, f"srun sh -c 'command -v {program}' looks on a node")
    try:
        there = srun_knows(program, context.cluster.slurm_conf)
    except SubmissionError as error:
        return unknown(f"srun's options cannot be listed: {_reason(error)}", "srun --help")
    if not there:
        message = f"this srun knows no {program}: Slurm has no plugin for {container.runtime}"
        return fail(message, "set container.runtime to another one, or ask your site")
    return ok(f"this srun takes {program} ({container.runtime})")


def pyxis_scope(context: Context) -> Diagnostic | None:
    """Where pyxis keeps all containers, those of a job would stay on the nodes for ever."""
    container = context.cluster.container
    if container.runtime != "pyxis" or container.scope == "step":
        return None
    scope = query_pyxis_scope(context.cluster.slurm_conf)
    if scope is None:
        message = f"no plugstack.conf here says whether pyxis keeps containers for a {container.scope} scope"
        hint = "grep container_scope /etc/slurm/plugstack.conf.d/* on a node; none found means global"
        return unknown(message, hint)
    if scope == container.scope:
        return ok(f"pyxis keeps containers with the scope {scope}, as the profile says")
    if scope == "global":
        return fail(
            "pyxis removes no container at a job's end (container_scope=global): "
            "every job would leave its image's files on the nodes",
            "set container.scope in the profile: to global (a node keeps one copy for all jobs), or to step",
        )
    return warn(
        "pyxis removes containers at a job's end (container_scope=job): every job imports the image again",
        "set container.scope to job in the profile",
    )


def _reason(error: SubmissionError) -> str:
    return error.message.strip().rstrip(".")


CHECKS = (
    Check("slurm-commands", commands, SRUN, on_slurm=True),
    Check("slurm-conf", configuration, SRUN, on_slurm=True),
    Check("slurm-controller", controller, CONTROLLER, on_slurm=True),
    Check("mpi-plugin", mpi_plugin, SRUN, on_slurm=True),
    Check("partition", partition, LIMITS, on_slurm=True),
    Check("partition-limits", limits, LIMITS, of_job=True, on_slurm=True),
    Check("architecture", architecture, CONTROLLER, on_slurm=True),
    Check("default-memory", default_memory, LIMITS, of_job=True, on_slurm=True),
    Check("neighbours", neighbours, LIMITS, of_job=True, on_slurm=True),
    Check("container-program", container_program, SRUN),
    Check("pyxis-scope", pyxis_scope),
)
