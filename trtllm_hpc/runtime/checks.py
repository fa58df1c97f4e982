"""Checks of an engine, a node and a tokenizer, which the preflight and ``doctor`` share."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.errors import FAIL, WARN, Diagnostic, ExitCode, fail, ok, unknown, warn
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.engine_config import EngineConfig
from trtllm_hpc.runtime.node import SCRATCH, SHM, free_space, mount_of
from trtllm_hpc.runtime.records import try_event

MIN_SHM_GIB_PER_RANK = 0.25
"""GiB. Triton's Python backend alone takes tens of MiB per model; Docker's default of 64 MiB is too
little."""

MIN_MEMLOCK_KIB = 64 * 1024
"""NCCL and UCX register memory with the network card; the usual default, 64 KiB or 8 MiB, is too little."""

MIN_OPEN_FILES = 1024
"""The usual default. A server, its model processes and HAProxy open several hundred files."""

MIN_FREE_MIB = 32
MIN_INODES = 200
"""Space for logs, records and scratch files; the records of a benchmark need more."""

VOCABULARY_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
)
"""Vocabulary files of transformers' tokenizers, beside ``*.tiktoken``."""

_AGAIN = "build it again"


def sentence_of(finding: Diagnostic) -> str:
    """Return a finding and its advice in one sentence."""
    return finding.message if finding.hint is None else f"{finding.message}; {finding.hint}"


def report(paths: RunPaths, findings: Iterable[Diagnostic]) -> int:
    """Print and record the faults and warnings of a preflight; return START if there is a fault, else 0."""
    code = ExitCode.OK
    for finding in findings:
        sentence = sentence_of(finding)
        if finding.state == FAIL:
            code = ExitCode.START
            print(f"error: preflight: {sentence}.", file=sys.stderr, flush=True)
            # try_event, since a full disk may be the fault.
            try_event(paths, "serve", "preflight_failed", reason=sentence)
        elif finding.state == WARN:
            print(f"warning: preflight: {sentence}.", file=sys.stderr, flush=True)
            try_event(paths, "serve", "preflight_warning", warning=sentence)
    return code


# Engine -----------------------------------------------------------------------------------


def engine_world(engine: EngineConfig, world_size: int) -> Diagnostic:
    """Check that the engine is built for as many ranks as the plan has (upstream: ``mpiSize == tp * pp``)."""
    where = f"the engine in {engine.folder}"
    if engine.world_size != world_size:
        return fail(
            f"{where} is built for {engine.world_size} rank(s), but the plan says {world_size}",
            "set engine.tensor_parallel and engine.pipeline_parallel to the engine's "
            f"({engine.tensor} and {engine.pipeline}), or {_AGAIN}",
        )
    return ok(f"{where} is built for {world_size} rank{'s' * (world_size != 1)}")


def engine_files(engine: EngineConfig) -> Diagnostic:
    """Check that each rank's file exists and is not empty."""
    for name in engine.files:
        file = engine.folder / name
        if not file.is_file():
            message = f"the engine in {engine.folder} is incomplete: {name} is missing"
            return fail(message, _AGAIN)
        if file.stat().st_size == 0 and not engine.is_reference:
            return fail(f"the engine in {engine.folder} is incomplete: {name} is empty", _AGAIN)
    return ok(f"all {len(engine.files)} files of the engine are there")


def engine_gpus_per_node(
    engine: EngineConfig, world_size: int, ranks_per_node: int, visible_gpus: int
) -> Diagnostic:
    """Check the engine's ``gpus_per_node``, from which the runtime derives a rank's node and device.

    ``worldConfig.h``: device = rank % gpus_per_node, node = rank / gpus_per_node. ``worldConfig.cpp``
    refuses fewer visible GPUs than ``gpus_per_node``, except a single one ("Detect 4 GPUs, the GPU number is
    incompatible with 8 gpusPerNode when MPI size is 8").
    """
    if engine.is_reference or world_size == 1:
        return ok("one rank computes on the first GPU" if world_size == 1 else "ranks take their own GPUs")
    built, nodes = engine.runtime_gpus_per_node, -(-world_size // ranks_per_node)
    described = f"the engine in {engine.folder} is built for nodes of {built} GPUs"
    if engine.gpus_per_node is None:
        described += " (its config.json names no number, so the runtime assumes 8)"
    hint = f"build it again with gpus_per_node {ranks_per_node} in the profile"
    if nodes == 1 and world_size > built:
        return fail(f"{described}: rank {built} would share a GPU with rank 0", hint)
    if nodes > 1 and built != ranks_per_node:
        message = (
            f"{described}, but {ranks_per_node} of the ranks run on each node: they would take the wrong GPUs"
        )
        return fail(message, hint)
    if 1 < visible_gpus < min(built, world_size):
        message = f"{described}, but a rank sees {visible_gpus}"
        return fail(message, f"build it again with gpus_per_node {visible_gpus} in the profile")
    return ok(f"{described}, which fits {nodes} node{'s' * (nodes > 1)} of {ranks_per_node} ranks")


def engine_version(engine: EngineConfig, release: str | None) -> Diagnostic:
    """Check that the container has the release that built the engine: no other can run it.

    Source: tensorrtllm_backend, issues 190, 194, 235.
    """
    if engine.is_reference:
        return ok("the reference backend's engine")
    if engine.version is None:
        return unknown(
            f"the engine in {engine.folder} does not say which TensorRT-LLM built it (0.7 and before did not)"
        )
    if release is None:
        return unknown(
            f"the engine is of TensorRT-LLM {engine.version}; the container's release is not known"
        )
    state = _compare_versions(engine.version, release)
    if state == "same":
        return ok(f"engine and container are of TensorRT-LLM {release}")
    message = (
        f"the engine in {engine.folder} is of TensorRT-LLM {engine.version}, but the container has {release}"
    )
    hint = f"{_AGAIN} with {release}, or serve with a container of {engine.version}"
    return warn(message, hint) if state == "near" else fail(message, hint)


def planned_version(planned: str, found: str | None) -> Diagnostic:
    """Check that the container has the release that the command lines were written for."""
    if found is None:
        return unknown(f"no TensorRT-LLM package in this Python; the plan is for {planned}")
    state = _compare_versions(planned, found)
    if state == "same":
        return ok(f"the container has TensorRT-LLM {found}, as planned")
    message = f"the container has TensorRT-LLM {found}, but the plan is for {planned}"
    version = found.partition("+")[0]
    hint = f"set container.tensorrt_llm_version in the profile to {version}, or take an image of {planned}"
    return warn(message, hint) if state == "near" else fail(message, hint)


def installed_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the version of each installed package among ``packages``, without importing it."""
    from importlib import metadata  # slow to import, and few commands need it

    versions = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def wheel_numpy() -> Diagnostic | None:
    """Check NumPy if nvidia-pytriton is installed: its stub for Python models misreads arrays of NumPy 2."""
    installed = installed_versions(("numpy", "nvidia-pytriton"))
    if len(installed) < 2 or int(installed["numpy"].partition(".")[0]) < 2:
        return None
    message = f"this Python has NumPy {installed['numpy']}, whose arrays nvidia-pytriton's server misreads"
    return fail(message, "pip install 'numpy<2', and what needs NumPy 2 into an environment of its own")


def _compare_versions(left: str, right: str) -> str:
    """Return ``same``, ``near`` (only the part after the numbers differs: rc, post, dev) or ``other``."""
    plain = [re.sub(r"\+.*", "", text.strip().lower()) for text in (left, right)]
    if plain[0] == plain[1]:
        return "same"
    numbers = [re.match(r"[0-9]+(?:\.[0-9]+)*", text) for text in plain]
    first, second = (re.sub(r"(\.0)+$", "", match.group()) if match else None for match in numbers)
    if first is None or first != second:
        return "other"
    rest = [text[match.end() :] if match else "" for text, match in zip(plain, numbers, strict=True)]
    return "same" if rest[0] == rest[1] else "near"


def paged_context(engine: EngineConfig, wanted_by: str) -> Diagnostic:
    """Check that the engine has paged context attention, which the job-file key ``wanted_by`` needs."""
    if engine.paged_context_fmha and engine.paged_kv_cache is not False:
        return ok(f"the engine has paged context attention, as {wanted_by} needs")
    return fail(
        f"{wanted_by} needs an engine with paged context attention (use_paged_context_fmha), "
        f"which the one in {engine.folder} lacks",
        f"set engine.paged_context_fmha to true and {_AGAIN}, or set {wanted_by} to false",
    )


# Node -------------------------------------------------------------------------------------


def step_world(tasks: int | None, ranks: int) -> Diagnostic | None:
    """Return a fault if a step does not have one task for each rank: its script may have been edited."""
    if tasks in (None, ranks):
        return None
    actual, planned = f"{tasks} task{'s' * (tasks != 1)}", f"{ranks} rank{'s' * (ranks != 1)}"
    hint = f"give srun in the run's scripts --ntasks={ranks} again, or submit the job file anew"
    return fail(f"the step has {actual}, but the plan says {planned}", hint)


def shared_memory(host: str, free_gib: float, ranks: int) -> Diagnostic:
    """Check the space in /dev/shm, through which Triton's Python models communicate."""
    needed = MIN_SHM_GIB_PER_RANK * ranks
    if free_gib < needed:
        message = f"/dev/shm on {host} has {free_gib:.2f} GiB free, but {ranks} rank(s) need {needed:.2f} GiB"
        return fail(message, "remove what dead jobs left in /dev/shm, or ask the site for a larger one")
    return ok(f"/dev/shm on {host} has {free_gib:.1f} GiB free")


def full_file_system(host: str, run_folder: Path) -> Diagnostic | None:
    """Return the first fault of a node's file systems: too little space or too few inodes.

    Checked first, because MPI, Slurm's PMIx and Triton report other errors when /tmp or /dev/shm is full.
    """
    folders = (("the run folder", run_folder), ("/tmp", SCRATCH), ("/dev/shm", SHM))
    faults = (disk_space(host, what, folder) for what, folder in folders)
    return next((fault for fault in faults if fault is not None), None)


def disk_space(host: str, what: str, folder: Path) -> Diagnostic | None:
    """Return a fault if a folder lacks space or inodes for logs, records and scratch files."""
    free_mib, inodes = free_space(folder)
    where = f"{what} ({folder}, on the file system {mount_of(folder)}) on {host}"
    if inodes is not None and inodes < MIN_INODES:
        return fail(f"{where} has {inodes} inodes left", "remove files there: df -i shows the inodes")
    if free_mib < MIN_FREE_MIB:
        message = f"{where} has {free_mib:.1f} MiB free, but {MIN_FREE_MIB} MiB are needed"
        return fail(message, "free space there, or ask the site for more")
    return None


def locked_memory(host: str, limit_kib: int | None) -> Diagnostic:
    """Check the soft limit on locked memory; ``None`` means unlimited."""
    if limit_kib is not None and limit_kib < MIN_MEMLOCK_KIB:
        return warn(
            f"only {limit_kib} KiB of memory may be locked on {host}: NCCL and UCX register more with the "
            "network card",
            "ask your site for LimitMEMLOCK=infinity in slurmd's unit",
        )
    amount = "any amount" if limit_kib is None else f"{limit_kib // 1024} MiB"
    return ok(f"{amount} of memory may be locked on {host}")


def open_files(host: str, limit: int) -> Diagnostic | None:
    """Return a fault if the soft limit on open files is too low; -1 means unlimited."""
    if not 0 <= limit < MIN_OPEN_FILES:
        return None
    return fail(
        f"only {limit} files may be open on {host} (ulimit -n), and a server needs {MIN_OPEN_FILES}",
        f"add 'ulimit -S -n {MIN_OPEN_FILES}' to the profile's setup lines, or ask your site for "
        "LimitNOFILE=65536 in slurmd's unit",
    )


_HINDRANCES = {
    "UCX_TLS": (
        r"\^(.*,)?cuda(_copy)?(,.*)?|(?!\^)(?!.*(cuda|all)).+",
        "UCX uses no transport that knows GPU memory",
    ),
    "UCX_IB_ROCE_LOCAL_SUBNET": (r"(?i)y|yes|1|on|true|try", "transfers of the KV cache may hang"),
    "NCCL_IB_DISABLE": ("1", "NCCL uses sockets instead of InfiniBand and RoCE"),
    "NCCL_NET": ("(?i)socket", "NCCL uses sockets instead of InfiniBand and RoCE"),
    "NCCL_P2P_DISABLE": ("1", "the GPUs of a node exchange data through its memory"),
}
"""Variables that Slurm, a site or an image may set: the values that limit a transport, and the effect.

Sources: TensorRT-LLM 18373 (Slurm's PMIx plugin sets ``UCX_TLS`` for every task) and 17300; NCCL's user
guide.
"""


def transports(host: str, environment: Mapping[str, str]) -> Diagnostic:
    """Check that no variable limits the transports of NCCL and the KV cache."""
    hindering = {
        name: f"{name}={environment[name]}: {effect}"
        for name, (values, effect) in _HINDRANCES.items()
        if re.fullmatch(values, environment.get(name, ""))
    }
    if not hindering:
        return ok(f"no variable limits UCX or NCCL on {host}")
    hint = f"add 'unset {' '.join(hindering)}' to the profile's setup lines"
    return warn(f"the environment on {host} has {'; '.join(hindering.values())}", hint)


# Tokenizer --------------------------------------------------------------------------------


def tokenizer_files(folder: Path) -> Diagnostic:
    """Check that ``AutoTokenizer`` can load a vocabulary from the folder, without the Hub."""
    hint = (
        f"copy the model's tokenizer files ({VOCABULARY_FILES[0]} or {VOCABULARY_FILES[1]}...) into {folder}"
    )
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return fail(f"the tokenizer's folder {folder} cannot be read: {error.strerror}", hint)
    present = [name for name in names if name in VOCABULARY_FILES or name.endswith(".tiktoken")]
    if not present:
        message = f"there is no tokenizer in {folder}, and compute nodes may be unable to reach the Hub"
        return fail(message, hint)
    for name in present:
        try:
            is_pointer = is_lfs_pointer(folder / name)
        except OSError as error:
            return fail(f"{folder / name} cannot be read: {error.strerror}", "check its permissions")
        if is_pointer:
            return fail(f"{folder / name} is a pointer of Git LFS, not the file", "run git lfs pull there")
    return ok(f"the tokenizer in {folder} can be read ({present[0]})")


def is_lfs_pointer(path: Path) -> bool:
    """Return whether a file is a Git LFS pointer. Raises OSError if the file cannot be read."""
    with path.open("rb") as file:
        return file.read(64).startswith(b"version https://git-lfs")
