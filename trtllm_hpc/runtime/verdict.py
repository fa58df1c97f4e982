"""The preflight's verdict: what the plan says, what the ranks see, and what is wrong with that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trtllm_hpc.errors import FAIL, WARN, Diagnostic, fail
from trtllm_hpc.runtime.checks.engine import (
    engine_files,
    engine_gpus_per_node,
    engine_version,
    engine_world,
    installed_version,
    paged_context,
    planned_version,
)
from trtllm_hpc.runtime.checks.engine_config import NotAnEngine, read_engines
from trtllm_hpc.runtime.checks.node import locked_memory, shared_memory
from trtllm_hpc.runtime.checks.tokenizer import tokenizer_files


@dataclass(frozen=True)
class Expected:
    """What the plan says."""

    world_size: int
    ranks_per_node: int
    gpus_per_node: int
    engine: Path | None
    """``None`` for a server that needs no engine."""
    engine_ranks: int
    """Ranks that the engine is built for; fewer than the world where it is served more than once."""
    release: str | None = None
    """TensorRT-LLM that the plan is for; ``None`` for the reference backend."""
    tokenizer: Path | None = None
    """Folder of the tokenizer, where the engine does not bring its own."""
    paged_context: str | None = None
    """What needs an engine with paged context attention, by its key in the job file."""


@dataclass(frozen=True)
class Found:
    """What one rank sees."""

    rank: int
    world_size: int
    task: int
    """Number of the task in its step; the launcher's word, not MPI's."""
    host: str
    gpus: list[str]
    shm_free_gib: float
    memlock_kib: int | None
    """Soft limit on locked memory; ``None`` is unlimited."""
    mpi_library: str
    gpu_models: list[str] = field(default_factory=list)
    """Name, driver and memory of each GPU; told by the first rank of a node only."""


def judge(gathered: list[Found], expected: Expected, *, whole: bool) -> str | None:
    """The first thing that is wrong with the world, in one sentence; ``None`` if nothing is.

    Args:
        whole: whether ``gathered`` holds every rank (without MPI only rank 0 is known).
    """
    first = gathered[0]
    if first.world_size != expected.world_size:
        return (
            f"the world has {first.world_size} rank{'s' * (first.world_size != 1)}, but the plan says "
            f"{expected.world_size}: {first.mpi_library} was not joined by the launcher "
            "(does `srun --mpi=list` show the profile's mpi plugin, and is this MPI built for it?)"
        )
    ranks = sorted(gathered, key=lambda found: found.rank)
    wrong = (_wrong_block(ranks, expected) if whole else None) or _wrong_gpus(ranks, expected)
    return wrong or next((_told(it) for it in outcomes(ranks, expected) if it.state == FAIL), None)


def doubts(gathered: list[Found], expected: Expected) -> list[str]:
    """What works, but not as somebody may expect: a sentence each."""
    return [_told(outcome) for outcome in outcomes(gathered, expected) if outcome.state == WARN]


def _told(outcome: Diagnostic) -> str:
    return outcome.message if outcome.hint is None else f"{outcome.message}; {outcome.hint}"


def outcomes(ranks: list[Found], expected: Expected) -> Iterator[Diagnostic]:
    """Every check that files and numbers can answer, each host once."""
    hosts = {found.host: found for found in reversed(ranks)}
    for host, found in sorted(hosts.items()):
        yield shared_memory(host, found.shm_free_gib, expected.ranks_per_node)
        if len(hosts) > 1 and expected.gpus_per_node:
            yield locked_memory(host, found.memlock_kib)
    installed = installed_version()
    if expected.release is not None:
        yield planned_version(expected.release, installed)
    if expected.engine is not None:
        yield from _engine(expected.engine, expected, installed, len(ranks[0].gpus))
    if expected.tokenizer is not None:
        yield tokenizer_files(expected.tokenizer)


def _engine(folder: Path, expected: Expected, installed: str | None, gpus: int) -> Iterator[Diagnostic]:
    try:
        engines = read_engines(folder)
    except NotAnEngine as error:
        yield fail(str(error), "run the build stage first")
        return
    for engine in engines:
        yield engine_world(engine, expected.engine_ranks)
        yield engine_files(engine)
        yield engine_version(engine, installed or expected.release)
        if expected.engine_ranks == expected.world_size:
            # Copies of one engine are told their GPUs (gpu_device_ids); the others take them by rank.
            yield engine_gpus_per_node(engine, expected.world_size, expected.ranks_per_node, gpus)
    if expected.paged_context is not None:
        yield paged_context(engines[0], expected.paged_context)


def _wrong_block(ranks: list[Found], expected: Expected) -> str | None:
    for found in ranks:
        first = ranks[found.rank - found.rank % expected.ranks_per_node]
        if found.host != first.host:
            return (
                f"rank {found.rank} is on {found.host}, but the plan puts it beside rank {first.rank} on "
                f"{first.host}: ranks must be distributed in blocks of {expected.ranks_per_node} a node"
            )
    return None


def _wrong_gpus(ranks: list[Found], expected: Expected) -> str | None:
    for found in ranks:
        if len(found.gpus) < expected.gpus_per_node:
            return (
                f"rank {found.rank} on {found.host} sees {len(found.gpus)} GPU(s) "
                f"({', '.join(found.gpus) or 'none'}), "
                f"but the plan gives each node {expected.gpus_per_node}, and every task must see them all"
            )
    return None
