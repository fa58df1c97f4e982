"""Options and variables that the toolkit sets itself, and where a person sets them instead."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NOT_YOURS = "leave it out: the toolkit sets it"
_RANKS = "set engine.tensor_parallel and serve.nodes in the job file"
_PATHS = "leave it out: logs go to the run folder, and 'trtllm-hpc logs' reads them"
_GPUS = "set gpus_per_node and gpu_request in the profile"
_CONTAINER = "set the container section of the profile"
_NOT_A_JOB = "leave it out: a run's jobs are submitted one by one, chained by dependencies"

SBATCH: Mapping[str, str] = {
    "--account": "set account in the profile",
    "--array": _NOT_A_JOB,
    "--chdir": "leave it out: the scripts use absolute paths",
    "--clusters": _NOT_A_JOB,
    "--constraint": "set constraint in the profile",
    "--cpus-per-task": "set build.cpus, serve.cpus_per_rank or companion.cpus in the job file",
    "--dependency": _NOT_A_JOB,
    "--distribution": _NOT_YOURS,
    "--error": _PATHS,
    "--exclusive": "set exclusive: true in the profile",
    "--export": "set environment in the profile",
    "--export-file": "set environment in the profile",
    "--gpus": _GPUS,
    "--gpus-per-node": _GPUS,
    "--gpus-per-socket": _GPUS,
    "--gpus-per-task": f"{_GPUS}; every rank must see all GPUs of its node",
    "--gres": _GPUS,
    "--help": _NOT_A_JOB,
    "--job-name": "set name in the job file",
    "--mem": "set memory_gib of the stage in the job file",
    "--mem-per-cpu": "set memory_gib of the stage in the job file",
    "--mem-per-gpu": "set memory_gib of the stage in the job file",
    "--no-requeue": _NOT_YOURS,
    "--nodes": "set serve.nodes in the job file",
    "--ntasks": _RANKS,
    "--ntasks-per-core": _RANKS,
    "--ntasks-per-gpu": _RANKS,
    "--ntasks-per-node": _RANKS,
    "--ntasks-per-socket": _RANKS,
    "--open-mode": _PATHS,
    "--output": _PATHS,
    "--parsable": _NOT_YOURS,
    "--partition": "set partition, or companion_partition, in the profile",
    "--qos": "set qos in the profile",
    "--quiet": _NOT_YOURS,
    "--requeue": "leave it out: a requeued server has no companion waiting any more",
    "--reservation": "set reservation in the profile",
    "--test-only": "type 'trtllm-hpc render' instead",
    "--time": "set time_limit_minutes of the stage in the job file",
    "--tres-per-task": _GPUS,
    "--uid": _NOT_YOURS,
    "--usage": _NOT_A_JOB,
    "--version": _NOT_A_JOB,
    "--wait": "type 'trtllm-hpc submit --wait' instead",
    "--wrap": _NOT_YOURS,
}
"""sbatch's options, by their long names."""

SRUN: Mapping[str, str] = {
    **{name: hint for name, hint in SBATCH.items() if name not in ("--wrap", "--parsable", "--wait")},
    "--container-image": _CONTAINER,
    "--container-mounts": _CONTAINER,
    "--input": _NOT_YOURS,
    "--jobid": _NOT_A_JOB,
    "--kill-on-bad-exit": _NOT_YOURS,
    "--mpi": "set mpi in the profile",
    "--multi-prog": _NOT_YOURS,
    "--no-container-mount-home": _CONTAINER,
    "--no-kill": "leave it out: a server that lost a rank cannot go on",
    "--overlap": "set companion: overlap in the profile",
    "--pty": _NOT_YOURS,
    "--relative": _NOT_YOURS,
    "--wait": _NOT_YOURS,
}
"""srun's options, by their long names."""

_PORTS = "leave it out: free ports are chosen in the job and published in endpoint.json"
_LEADER = "leave it out: rank 0 serves, the other ranks must not"
TRITON: Mapping[str, str] = {
    "--allow-grpc": _LEADER,
    "--allow-http": _LEADER,
    "--allow-metrics": _LEADER,
    "--disable-auto-complete-config": _NOT_YOURS,
    "--grpc-address": _PORTS,
    "--grpc-port": _PORTS,
    "--help": _NOT_YOURS,
    "--http-address": _PORTS,
    "--http-port": _PORTS,
    "--load-model": _LEADER,
    "--metrics-address": _PORTS,
    "--metrics-port": _PORTS,
    "--model-control-mode": _LEADER,
    "--model-repository": "leave it out: the run folder holds the repository",
    "--model-store": "leave it out: the run folder holds the repository",
    "--reuse-grpc-port": _PORTS,
    "--reuse-http-port": _PORTS,
    "--version": _NOT_YOURS,
}
"""tritonserver's options."""

VARIABLES = re.compile(
    r"(SLURM|SBATCH|SRUN|TRTLLM_HPC)_.*|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PMIX_MCA_gds"
)
"""Environment variables that Slurm or the toolkit sets for each rank."""

SECRETS = re.compile(r"(.*_)?(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS)", re.IGNORECASE)
"""Names that a secret goes by."""


def managed_by(option: str, table: Mapping[str, str]) -> tuple[str, str] | None:
    """The managed option that this word sets, and its remedy; ``None`` if it sets none.

    ``getopt_long``, which all three programs use, takes any unambiguous
    beginning of a name: ``--part=gpu`` sets the partition too.
    """
    name = option.partition("=")[0]
    if name in table:
        return name, table[name]
    # A bare "--" begins every name; the caller judges the form of an option.
    longer = [known for known in table if known.startswith(name)] if len(name) > 2 else []
    return (longer[0], table[longer[0]]) if longer else None
