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
"""Names of processors (``uname -m``, Slurm) by ``e_machine`` in the header of a program (elf(5))."""
_COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "scancel")


def commands(context: Context) -> Diagnostic | None:
    """Slurm's commands are installed, except ``sacct``, which needs accounting."""
    missing = [name for name in _COMMANDS if shutil.which(name) is None]
    if missing:
        message = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on this machine"
        hint = "log in to a node of the cluster, or type --cluster local"
        return fail(message, hint)
    return ok("Slurm's commands are on this machine")


def configuration(context: Context) -> Diagnostic | None:
    """The profile's ``slurm.conf`` is readable."""
    file = context.cluster.slurm_conf
    if file is None:
        return None
    if not os.access(file, os.R_OK):
        message = f"slurm_conf in the profile, {file}, cannot be read on this machine"
        hint = "for the sandbox, type trtllm-hpc sandbox up; else fix slurm_conf in the profile"
        return fail(message, hint)
    return ok(f"{file} is readable")


def controller(context: Context) -> Diagnostic | None:
    """``slurmctld`` answers."""
    if not context.can_ask_slurm:
        return None
    try:
        count = len({item.name for item in context.slurm.partitions})
    except SubmissionError as error:
        hint = "type scontrol ping; if the controller stays down, ask your site"
        if context.cluster.is_sandbox:
            hint = "trtllm-hpc sandbox up"
        return fail(f"Slurm's controller does not answer: {_reason(error)}", hint)
    return ok(f"Slurm's controller answers, with {count} partition{'s' * (count != 1)}")


def mpi_plugin(context: Context) -> Diagnostic | None:
    """Slurm has the MPI plugin of the profile, which is PMIx for NVIDIA's containers."""
    wanted = context.cluster.mpi
    try:
        plugins = query_mpi_plugins(context.cluster.slurm_conf)
    except SubmissionError as error:
        return unknown(f"the MPI plugins cannot be listed: {_reason(error)}", "srun --mpi=list")
    pmix = pmix_of(plugins)
    hint = f"set mpi to {pmix[0]} in the profile" if pmix else "ask your site for Slurm's PMIx plugin"
    if wanted == "mpirun":
        return ok("Open MPI's mpirun starts the ranks")
    if wanted not in plugins:
        message = f"this Slurm has no MPI plugin {wanted!r}, only {', '.join(plugins)}"
        if not plugins:
            message = f"this Slurm has no MPI plugin {wanted!r} and no other"
        if pmix or not pmix_of([wanted]):
            return fail(message, hint)
        instead = "Open MPI's mpirun starts the ranks instead: the image, or the node, needs Open MPI 4"
        return warn(f"{message}. {instead}", f"{hint}; or set mpi to mpirun in the profile")
    if not pmix_of([wanted]):
        return warn(f"NVIDIA's containers need PMIx, but mpi in the profile is {wanted}", hint)
    return ok(f"this Slurm has the MPI plugin {wanted}")


def partition(context: Context) -> Diagnostic | None:
    """The profile's partitions exist and have its number and type of GPUs."""
    cluster = context.cluster
    phases = () if cluster.phases is None else ("context", "generation")
    if context.has_job:
        if len(context.plan.parts) == 1:
            phases = ()
        else:  # the serve job uses the phases' nodes, so the profile's own partition needs no GPUs
            cluster = cluster.model_copy(update={"gpus_per_node": 0, "gpu_type": None})
    results = [_partition(context, cluster, "")]
    for keys in ("companion_", "download_"):
        update = {"partition": getattr(cluster, f"{keys}partition"), "gpus_per_node": 0, "gpu_type": None}
        results.append(_partition(context, cluster.model_copy(update=update), keys))
    results += [_partition(context, context.cluster.for_phase(role), f"phases.{role}.") for role in phases]
    known = [result for result in results if result is not None]
    wrong = next((result for result in known if result.state != OK), None)
    return wrong or (ok("; ".join(dict.fromkeys(result.message for result in known))) if known else None)


def _partition(context: Context, cluster: ClusterProfile, keys: str) -> Diagnostic | None:
    """Judge the partition of a profile, or of one phase; ``keys`` is the prefix of its keys."""
    name = cluster.partition
    if name is None:
        return None
    wanted_names = name.split(",")
    try:
        partitions = [item for item in context.slurm.partitions if item.name in wanted_names]
    except SubmissionError as error:
        return unknown(f"the partitions cannot be listed: {_reason(error)}", "sinfo")
    absent = [name for name in wanted_names if name not in {item.name for item in partitions}]
    if absent:
        names = ", ".join(sorted({item.name for item in context.slurm.partitions})) or "none"
        message = f"there is no partition {absent[0]!r}; you can use {names}"
        return fail(message, f"set {keys}partition in the profile, or --set cluster.{keys}partition=NAME")
    kind = cluster.gpu_type
    if kind is not None and kind not in {item.gpu_type for item in partitions}:
        kinds = ", ".join(sorted({item.gpu_type for item in partitions} - {""})) or "GPUs without a type"
        message = f"the partition {name!r} has no GPUs of type {kind!r}; it has {kinds}"
        return fail(message, f"set {keys}gpu_type in the profile to one of these, or remove it")
    partitions = [item for item in partitions if kind in (None, item.gpu_type)]
    most, wanted = max(item.gpus_per_node or item.slices for item in partitions), cluster.gpus_per_node
    gpus = f"{most} GPU{'s' * (most != 1)}"
    if cluster.gpu_request != "none" and most < wanted:
        message = f"a node of the partition {name!r} has {gpus}, but the profile says {wanted}"
        hint = f"set {keys}gpus_per_node to {most} in the profile, or choose another partition"
        if cluster.is_sandbox:
            hint = f"--set cluster.{keys}gpus_per_node={most}"
        return fail(message, hint)
    nodes = sum(item.nodes for item in partitions)
    source = ""
    if cluster.is_sandbox and most:
        real = any(item.gpu_type == REAL_GPU for item in partitions)
        source = " of this machine" if real else " that are simulated: nothing can compute on them"
    return ok(f"the partition {name!r} has {nodes} node{'s' * (nodes != 1)} with {gpus}{source}")


def limits(context: Context) -> Diagnostic | None:
    """Every stage is within its partition's limits; beyond them Slurm lets a job wait for ever."""
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
        excesses = [_beyond(stage.name, phase, component, most) for most in allowed]
        # Slurm chooses among several partitions, so one that allows the stage is enough.
        if excesses and excesses[0] is not None and all(excesses):
            # A QOS may lift its partition's limits (sacctmgr(1), PartitionMaxNodes, PartitionTimeLimit).
            return excesses[0] if component.qos is None else replace(excesses[0], state=WARN)
    return ok("every stage is within its partition's limits")


def architecture(context: Context) -> Diagnostic | None:
    """The Python of the jobs runs on the nodes' processors, which can differ from this machine's."""
    cluster = context.cluster
    if not context.can_ask_slurm:
        return None
    with suppress(SubmissionError, OSError):  # other checks report these errors
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
    """Without a memory request, the server gets enough for its weights, which pass through node memory."""
    serve = context.plan.stage("serve")
    if context.model_folder is None or serve is None or not context.can_ask_slurm:
        return None
    with suppress(ConfigError, SubmissionError):  # other checks report these errors
        # Imported late because `submit` of a job without a model needs neither.
        from trtllm_hpc.tensorrt_llm.job_facts import Checkpoint
        from trtllm_hpc.tensorrt_llm.memory import gib

        size = Checkpoint(context.model_folder).stored or 0
        for asked in serve.components if serve.first.memory_gib is None else ():
            ranks = asked.tasks_per_node or 1
            weights = size * ranks // context.job.engine.world_size
            for partition in context.slurm.limits_of(asked):
                default = partition.memory or context.slurm.default_memory
                if default is None:
                    continue
                available = default.on_node(asked.cpus_per_task * ranks) * 2**20
                if available >= weights:
                    continue
                each = f"{ranks} ranks x {asked.cpus_per_task} CPUs x " if "CPU" in default.key else ""
                message = (
                    f"serve requests no memory, so the partition {partition.name!r} gives it "
                    f"{gib(available)} on a node ({each}{default.key}={default.mib}), but the weights there "
                    f"are {gib(weights)}"
                )
                return warn(message, "set serve.memory_gib_per_node in the job file, e.g. to all")
        return ok("the nodes give the server enough memory for its weights")
    return None


def neighbours(context: Context) -> Diagnostic | None:
    """No other user shares a node with a server that listens at 127.0.0.1 without a key."""
    is_reachable = context.job.frontend == "openai" and not context.cluster.exclusive
    if not is_reachable or not context.can_ask_slurm:
        return None
    serve = context.plan.stage("serve")
    components = serve.components if serve else ()
    try:
        partitions = [limits for asked in components for limits in context.slurm.limits_of(asked)]
    except SubmissionError:
        return None  # the check of the limits reports the error
    if not any(limits.is_shared for limits in partitions):
        return None
    return warn(
        "other users' jobs may run on the server's nodes, and reach it there at 127.0.0.1 without a key",
        "set exclusive: true in the cluster profile to keep other jobs off these nodes",
    )


def _beyond(stage: str, phase: str | None, asked: Resources, most: PartitionLimits) -> Diagnostic | None:
    """Return a diagnostic if a stage, or a phase of it, exceeds a partition's limits."""
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
        message = f"{who} requests {asked.nodes} nodes, but {where} allows a job at most {has}"
        return fail(message, f"{fewer}, or {elsewhere}")
    if most.minutes is not None and asked.minutes > most.minutes:
        message = f"{who} requests {asked.minutes} minutes, but {where} allows {most.minutes}"
        return fail(message, f"set {stage}.time_limit_minutes to {most.minutes} or less, or {elsewhere}")
    if asked.account is not None and most.accounts is not None and asked.account not in most.accounts:
        message = f"{where} of {who} does not accept the account {asked.account!r}"
        return fail(message, f"set account in the profile to one of {', '.join(sorted(most.accounts))}")
    if most.groups is not None and os.getuid() != 0 and not most.groups & _own_groups():
        message = f"{where} of {who} is only for the groups {', '.join(sorted(most.groups))}"
        return fail(message, f"ask your site, or {elsewhere}")
    if most.state != "UP":
        message = f"{where} of {who} is {most.state}, so no job starts there"
        return warn(message, f"wait, ask your site, or {elsewhere}")
    return None


def _own_groups() -> set[str]:
    names = set()
    for number in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):
            names.add(grp.getgrgid(number).gr_name)
    return names


def container_program(context: Context) -> Diagnostic | None:
    """The runtime's program is installed, or ``srun`` has its option."""
    container = context.cluster.container
    if container.entry is None:
        return None
    program = container.entry.program
    if container.entry.place == "command":
        if shutil.which(program):
            return ok(f"{program} is on this machine")
        message = f"there is no {program} on this machine; the nodes, or a line of setup, may provide it"
        return warn(message, f"type srun sh -c 'command -v {program}' to look on a node")
    try:
        has_plugin = srun_knows(program, context.cluster.slurm_conf)
    except SubmissionError as error:
        return unknown(f"srun's options cannot be listed: {_reason(error)}", "srun --help")
    if not has_plugin:
        message = f"srun has no option {program}: Slurm has no plugin for {container.runtime}"
        return fail(message, "set container.runtime in the profile to another runtime, or ask your site")
    return ok(f"srun has the option {program} ({container.runtime})")


def pyxis_scope(context: Context) -> Diagnostic | None:
    """pyxis removes a job's containers, as the profile expects; else they stay on the nodes for ever."""
    container = context.cluster.container
    if container.runtime != "pyxis" or container.scope == "step":
        return None
    scope = query_pyxis_scope(context.cluster.slurm_conf)
    if scope is None:
        message = f"no plugstack.conf on this machine shows whether pyxis has the scope {container.scope}"
        hint = "type grep container_scope /etc/slurm/plugstack.conf.d/* on a node; no match means global"
        return unknown(message, hint)
    if scope == container.scope:
        return ok(f"pyxis has the container scope of the profile, {scope}")
    if scope == "global":
        return fail(
            "pyxis removes no container at a job's end (container_scope=global), "
            "so every job would leave its image's files on the nodes",
            "set container.scope in the profile: to global (a node keeps one copy for all jobs), or to step",
        )
    return warn(
        "pyxis removes containers at a job's end (container_scope=job), so every job imports the image again",
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
