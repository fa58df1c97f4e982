"""What no single field can say: findings about fields together, and about both files together.

One small generator for each rule. They see valid models only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.findings import Path, dotted, shown
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.managed import SBATCH, SECRETS, SRUN, TRITON, VARIABLES, managed_by
from trtllm_hpc.errors import Finding

if TYPE_CHECKING:
    from trtllm_hpc.config.load import Resolved

LONGEST_WORD = 120_000
"""Bytes that one argument or variable may hold; Linux refuses 128 KiB (``MAX_ARG_STRLEN``), name included."""


@dataclass(frozen=True)
class Problem:
    """A finding without its place."""

    file: Literal["job", "cluster"]
    code: str
    path: Path
    message: str
    hint: str
    value: Any = None


def check(resolved: Resolved) -> list[Finding]:
    """Findings on values that were built without files, or read from them; without lines."""
    files = {"job": resolved.job_file, "cluster": resolved.cluster_file}
    return [
        Finding(
            found.code,
            found.message,
            files[found.file],
            dotted(found.path),
            value=found.value,
            hint=found.hint,
        )
        for found in problems(resolved.job, resolved.cluster)
    ]


def problems(job: JobFile, cluster: ClusterProfile) -> list[Problem]:
    """Everything that keeps this job file and this profile from going together."""
    found = [problem for rule in _JOB_RULES for problem in rule(job)]
    found += [problem for rule in _CLUSTER_RULES for problem in rule(cluster)]
    found += [problem for rule in _JOINT_RULES for problem in rule(job, cluster)]
    return found


# The job file ---------------------------------------------------------------------


def _one_model(job: JobFile) -> Iterator[Problem]:
    model = job.model
    if model.path is not None and model.synthetic is not None:
        yield Problem(
            "job", "conflict", ("model",), "names both a path and a synthetic model", "keep one of the two"
        )
    if model.path is None and model.synthetic is None and job.engine.directory is None:
        yield Problem(
            "job", "missing", ("model",), "names no model",
            "set model.path to a folder, or model.synthetic to tiny-llama",
        )  # fmt: skip


def _prompt_and_answer_fit(job: JobFile) -> Iterator[Problem]:
    engine = job.engine
    if engine.max_input_len >= engine.max_seq_len:
        yield Problem(
            "job", "conflict", ("engine", "max_input_len"),
            f"the longest prompt ({engine.max_input_len} tokens) leaves no room for an answer "
            f"within engine.max_seq_len ({engine.max_seq_len})",
            f"set engine.max_seq_len above {engine.max_input_len}",
            engine.max_input_len,
        )  # fmt: skip
    if not job.companion.enabled:
        return
    asked = {("companion", "request", "max_tokens"): job.companion.request.max_tokens}
    if job.companion.benchmark is not None:
        asked[("companion", "benchmark", "max_tokens")] = job.companion.benchmark.max_tokens
    for path, tokens in asked.items():
        if tokens >= engine.max_seq_len:
            yield Problem(
                "job", "conflict", path,
                f"{tokens} tokens and a prompt do not fit into engine.max_seq_len ({engine.max_seq_len})",
                f"ask for fewer tokens, or set engine.max_seq_len above {tokens}",
                tokens,
            )  # fmt: skip


def _reference_backend(job: JobFile) -> Iterator[Problem]:
    if job.engine.backend != "reference":
        return
    for key in ("pipeline_parallel", "context_parallel"):
        value = getattr(job.engine, key)
        if value != 1:
            yield Problem(
                "job", "conflict", ("engine", key),
                f"the reference backend computes in tensor parallel only, not with {key} {value}",
                f"set engine.{key} to 1",
                value,
            )  # fmt: skip


def _waits_are_ordered(job: JobFile) -> Iterator[Problem]:
    ready, serve_limit = job.serve.ready_timeout_seconds, job.serve.time_limit_minutes * 60
    if ready >= serve_limit:
        yield Problem(
            "job", "conflict", ("serve", "ready_timeout_seconds"),
            f"waiting {ready} s for the server ends after its job's time limit ({serve_limit} s)",
            f"lower it below {serve_limit}, or raise serve.time_limit_minutes",
            ready,
        )  # fmt: skip
    if not job.companion.enabled:
        return
    endpoint, limit = job.companion.endpoint_timeout_seconds, job.companion.time_limit_minutes * 60
    if ready >= endpoint:
        yield Problem(
            "job", "conflict", ("companion", "endpoint_timeout_seconds"),
            f"the companion would give up after {endpoint} s, before the server's own bound ({ready} s) tells why",
            f"set it above serve.ready_timeout_seconds ({ready})",
            endpoint,
        )  # fmt: skip
    if endpoint >= limit:
        yield Problem(
            "job", "conflict", ("companion", "endpoint_timeout_seconds"),
            f"waiting {endpoint} s for the endpoint ends after the companion's time limit ({limit} s)",
            f"lower it below {limit}, or raise companion.time_limit_minutes",
            endpoint,
        )  # fmt: skip


def _benchmark_fits(job: JobFile) -> Iterator[Problem]:
    benchmark = job.companion.benchmark
    if benchmark is None or not job.companion.enabled:
        return
    seconds = benchmark.requests / benchmark.rate_per_second
    for section in ("serve", "companion"):
        limit = getattr(job, section).time_limit_minutes * 60
        if seconds >= limit:
            yield Problem(
                "job", "conflict", ("companion", "benchmark", "requests"),
                f"{benchmark.requests} requests at {benchmark.rate_per_second:g} per second last {seconds:.0f} s, "
                f"longer than {section}.time_limit_minutes ({limit} s)",
                f"send fewer, or faster, or raise {section}.time_limit_minutes",
                benchmark.requests,
            )  # fmt: skip


def _prompt_fits_a_word(job: JobFile) -> Iterator[Problem]:
    size = len(job.companion.request.prompt.encode())
    if size > LONGEST_WORD:
        yield Problem(
            "job", "too-large", ("companion", "request", "prompt"),
            f"the prompt has {size} bytes, more than a command line can carry",
            f"keep it below {LONGEST_WORD} bytes",
        )  # fmt: skip


# The profile ----------------------------------------------------------------------


def _container(cluster: ClusterProfile) -> Iterator[Problem]:
    container = cluster.container
    if container.runtime != "none" and container.image is None:
        yield Problem(
            "cluster", "missing", ("container", "image"),
            f"{container.runtime} needs an image",
            "set container.image, e.g. a .sqsh or .sif file or a registry name",
        )  # fmt: skip
    if container.runtime == "none":
        for key in ("image", "mounts", "options"):
            value = getattr(container, key)
            if value:
                yield Problem(
                    "cluster", "conflict", ("container", key),
                    "is set, but container.runtime is none: nothing would use it",
                    "set container.runtime to pyxis or apptainer, or remove it",
                    value,
                )  # fmt: skip
    if container.runtime == "pyxis" and cluster.scheduler == "local":
        yield Problem(
            "cluster", "conflict", ("container", "runtime"),
            "pyxis is a part of Slurm's srun, which scheduler: local does not use",
            "set container.runtime to none or apptainer",
            "pyxis",
        )  # fmt: skip


def _local_scheduler(cluster: ClusterProfile) -> Iterator[Problem]:
    if cluster.scheduler != "local":
        return
    if cluster.companion == "overlap":
        yield Problem(
            "cluster", "conflict", ("companion",),
            "overlap is a step inside a Slurm allocation, and scheduler: local has none",
            "set companion to job",
            "overlap",
        )  # fmt: skip
    # What only Slurm understands would be lost without a word.
    for key in ("slurm_conf", "partition", "account", "qos", "reservation", "constraint",
                "companion_partition", "sbatch_options", "srun_options"):  # fmt: skip
        value = getattr(cluster, key)
        if value:
            yield Problem(
                "cluster", "conflict", (key,), "is for Slurm, but scheduler is local",
                "remove it, or set scheduler to slurm", value,
            )  # fmt: skip


def _slurm_options(cluster: ClusterProfile) -> Iterator[Problem]:
    yield from _long_options(("sbatch_options",), cluster.sbatch_options, SBATCH)
    yield from _long_options(("srun_options",), cluster.srun_options, SRUN)
    if cluster.container.runtime == "pyxis":
        yield from _long_options(("container", "options"), cluster.container.options, SRUN)


def _long_options(path: Path, options: Sequence[str], table: Mapping[str, str]) -> Iterator[Problem]:
    for index, option in enumerate(options):
        if not re.fullmatch(r"--[A-Za-z][A-Za-z0-9-]*(=.*)?", option):
            yield Problem(
                "cluster", "bad-value", (*path, index),
                f"{shown(option)} is not of the form --name or --name=value",
                "write one option in each item, by its long name and with '=' before the value",
                option,
            )  # fmt: skip
            continue
        yield from _unmanaged((*path, index), option, table)


def _unmanaged(path: Path, option: str, table: Mapping[str, str]) -> Iterator[Problem]:
    managed = managed_by(option, table)
    if managed is not None:
        name, hint = managed
        yield Problem(
            "cluster",
            "managed",
            path,
            f"{shown(option)} sets {name}, which the toolkit sets itself",
            hint,
            option,
        )


def _triton_options(cluster: ClusterProfile) -> Iterator[Problem]:
    for index, option in enumerate(cluster.triton.options):
        path = ("triton", "options", index)
        if option.startswith("--"):
            yield from _unmanaged(path, option, TRITON)
        if "shm-region-prefix-name" in option:
            yield Problem(
                "cluster", "managed", path, "sets shm-region-prefix-name, which the toolkit sets itself",
                "leave it out: the prefix carries job id and rank, so that jobs can share a node", option,
            )  # fmt: skip


def _environment(cluster: ClusterProfile) -> Iterator[Problem]:
    for name, value in cluster.environment.items():
        path = ("environment", name)
        if VARIABLES.fullmatch(name):
            yield Problem(
                "cluster",
                "managed",
                path,
                "is set by Slurm or by the toolkit for each rank",
                "remove it",
                value,
            )
        elif SECRETS.fullmatch(name):
            yield Problem(
                "cluster", "secret", path, "looks like a secret, and the scripts of a run are files",
                "read it on the node, in a line of setup, from a file that only you can read",
            )  # fmt: skip
        if len(value.encode()) > LONGEST_WORD:
            yield Problem(
                "cluster", "too-large", path, "is longer than a variable can be",
                f"keep it below {LONGEST_WORD} bytes",
            )  # fmt: skip


# Both together ---------------------------------------------------------------------


def _ranks_spread(job: JobFile, cluster: ClusterProfile) -> Iterator[Problem]:
    world, nodes = job.engine.world_size, job.serve.nodes
    if cluster.scheduler == "local" and nodes not in (None, 1):
        yield Problem(
            "job", "conflict", ("serve", "nodes"),
            f"the profile {cluster.name!r} is this one machine, but the job asks for {nodes} nodes",
            "leave serve.nodes out, type --set serve.nodes=1, or choose a Slurm profile with --cluster",
            nodes,
        )  # fmt: skip
    elif nodes is not None and world % nodes:
        yield Problem(
            "job", "conflict", ("serve", "nodes"),
            f"{world} rank{'s' * (world > 1)} cannot be spread evenly over {nodes} nodes",
            f"set serve.nodes in the job file to a divisor of {world}, or type --set serve.nodes=1",
            nodes,
        )  # fmt: skip
    else:
        yield from _gpus_suffice(job, cluster)


def _gpus_suffice(job: JobFile, cluster: ClusterProfile) -> Iterator[Problem]:
    world, gpus = job.engine.world_size, cluster.gpus_per_node
    nodes = 1 if cluster.scheduler == "local" else job.serve.nodes
    if not gpus or nodes is None or world // nodes <= gpus:
        return
    fewest = next(count for count in range(1, world + 1) if world % count == 0 and world // count <= gpus)
    remedy = (
        f"set serve.nodes to {fewest}" if cluster.scheduler == "slurm" else "lower engine.tensor_parallel"
    )
    yield Problem(
        "job", "conflict", ("serve", "nodes"),
        f"{world // nodes} ranks on a node need as many GPUs, but a node of {cluster.name!r} has {gpus}",
        remedy, nodes,
    )  # fmt: skip


def _build_gpus(job: JobFile, cluster: ClusterProfile) -> Iterator[Problem]:
    if job.build.gpus > cluster.gpus_per_node:
        yield Problem(
            "job", "conflict", ("build", "gpus"),
            f"{job.build.gpus} GPUs for the build, but a node of {cluster.name!r} has {cluster.gpus_per_node}",
            f"set build.gpus to at most {cluster.gpus_per_node}, or mend gpus_per_node in the profile",
            job.build.gpus,
        )  # fmt: skip


_JOB_RULES: Sequence[Callable[[JobFile], Iterator[Problem]]] = (
    _one_model,
    _prompt_and_answer_fit,
    _reference_backend,
    _waits_are_ordered,
    _benchmark_fits,
    _prompt_fits_a_word,
)
_CLUSTER_RULES: Sequence[Callable[[ClusterProfile], Iterator[Problem]]] = (
    _container,
    _local_scheduler,
    _slurm_options,
    _triton_options,
    _environment,
)
_JOINT_RULES: Sequence[Callable[[JobFile, ClusterProfile], Iterator[Problem]]] = (
    _ranks_spread,
    _build_gpus,
)
