"""The preflight: is the world what the plan says?

It runs as a step of its own, one task a rank, and is the only code that
initialises MPI: a process that has done so must not start a server.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
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
from trtllm_hpc.runtime.checks.outcome import FAIL, WARN, Outcome, fail
from trtllm_hpc.runtime.checks.tokenizer import tokenizer_files
from trtllm_hpc.runtime.records import RankRecord, add_event
from trtllm_hpc.runtime.sweep import shm_free_gib

TIMEOUT_S = 120
"""Bound on MPI's start and on the gather."""

_AFTER_THE_WORD_S = 3
"""How long the other tasks wait for task 0 to have spoken."""


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


class _World:
    """The ranks together, by MPI or by this machine's spawn."""

    def __init__(self, communicator: Any | None, rank: int, size: int, library: str) -> None:
        self._communicator = communicator
        self.rank = rank
        self.size = size
        self.library = library

    def gather(self, found: Found) -> list[Found] | None:
        """All ranks' findings at rank 0; ``None`` elsewhere, and without MPI."""
        if self._communicator is None:
            return [found] if self.rank == 0 else None
        gathered: list[Found] | None = self._communicator.gather(found, root=0)
        return gathered

    def share(self, verdict: str | None) -> str | None:
        """Rank 0's verdict at every rank."""
        if self._communicator is None:
            return verdict
        shared: str | None = self._communicator.bcast(verdict, root=0)
        return shared


def run_preflight(paths: RunPaths, expected: Expected, *, with_mpi: bool) -> int:
    """Look, gather, judge; returns 0, or the exit code of a refused start.

    MPI is initialised in a child: a library that finds no launcher aborts its
    process, and somebody must be left to say so in one sentence.
    """
    task = int(os.environ.get("SLURM_PROCID") or os.environ.get("TRTLLM_HPC_PROCID") or 0)
    child = os.fork()
    if child == 0:
        sys.exit(_look_and_judge(paths, expected, task, with_mpi=with_mpi))
    # The step's exit code must be ours: Slurm signals the child as well.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code in (ExitCode.OK, ExitCode.START):
        return code
    if code == -signal.SIGTERM:
        return ExitCode.START  # somebody ended the step; that is no word about MPI
    return _refuse(
        paths,
        task,
        f"MPI ended its process ({_how(code)}) before the ranks were joined: this MPI and the launcher "
        "do not fit (compare the profile's mpi with `srun --mpi=list`; MPI's own words are in the log)",
    )


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _look_and_judge(paths: RunPaths, expected: Expected, task: int, *, with_mpi: bool) -> int:
    _bound()
    started_at = time.time()
    try:
        world = _mpi_world() if with_mpi else _spawned_world(task)
    except _NoMpi as error:
        return _refuse(paths, task, str(error))
    found = _look(world, task)
    _record(paths, found, started_at)
    print(_describe(found), flush=True)
    gathered = world.gather(found)
    verdict = world.share(None if gathered is None else judge(gathered, expected, whole=with_mpi))
    if verdict is not None:
        return _refuse(paths, task, verdict)
    for sentence in [] if gathered is None else doubts(gathered, expected):
        add_event(paths, "serve", "preflight_warning", reason=sentence)
        print(f"warning: preflight: {sentence}.", file=sys.stderr, flush=True)
    if task == 0:
        add_event(paths, "serve", "preflight_ok", world_size=world.size, mpi_library=world.library)
    signal.alarm(0)
    return ExitCode.OK


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


def _told(outcome: Outcome) -> str:
    return outcome.sentence if outcome.remedy is None else f"{outcome.sentence}; {outcome.remedy}"


def outcomes(ranks: list[Found], expected: Expected) -> Iterator[Outcome]:
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


def _engine(folder: Path, expected: Expected, installed: str | None, gpus: int) -> Iterator[Outcome]:
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


class _NoMpi(Exception):
    """mpi4py is not there, or finds no MPI library."""


def _mpi_world() -> _World:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise _NoMpi(
            f"{sys.executable} cannot use MPI ({error}): it needs mpi4py (pip install 'trtllm-hpc[mpi]') "
            "and an MPI library built with PMIx"
        ) from None
    communicator = MPI.COMM_WORLD
    library = MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\0 ")
    return _World(communicator, communicator.Get_rank(), communicator.Get_size(), library)


def _spawned_world(task: int) -> _World:
    return _World(None, task, int(os.environ.get("TRTLLM_HPC_NTASKS", "1")), "no MPI (local profile)")


def _look(world: _World, task: int) -> Found:
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("SLURM_STEP_GPUS") or ""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Found(
        rank=world.rank,
        world_size=world.size,
        task=task,
        host=socket.gethostname(),
        gpus=[gpu for gpu in gpus.split(",") if gpu],
        shm_free_gib=round(shm_free_gib(), 3),
        memlock_kib=None if soft == resource.RLIM_INFINITY else soft // 1024,
        mpi_library=world.library,
    )


def _describe(found: Found) -> str:
    memlock = "unlimited" if found.memlock_kib is None else f"{found.memlock_kib} KiB"
    return (
        f"preflight: rank {found.rank} of {found.world_size} on {found.host}, "
        f"GPUs {','.join(found.gpus) or 'none'}, /dev/shm {found.shm_free_gib:.1f} GiB free, "
        f"memlock {memlock}, {found.mpi_library}"
    )


def _record(paths: RunPaths, found: Found, started_at: float) -> None:
    RankRecord(
        step="preflight",
        rank=found.task,
        world_size=found.world_size,
        job_id=os.environ.get("TRTLLM_HPC_JOB_ID", ""),
        host=found.host,
        pid=os.getpid(),
        started_at=started_at,
        ended_at=time.time(),
        exit_code=0,
        details=asdict(found),
    ).write(paths.rank_record("preflight", found.task))


def _refuse(paths: RunPaths, task: int, sentence: str) -> int:
    if task == 0:
        add_event(paths, "serve", "preflight_failed", reason=sentence)
        print(f"error: preflight: {sentence}.", file=sys.stderr, flush=True)
    else:
        # The first task to fail ends the step: the one that can say why must be it.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.START))
        time.sleep(_AFTER_THE_WORD_S)
    signal.alarm(0)
    return ExitCode.START


def _bound() -> None:
    def give_up(_signal: int, _frame: Any) -> None:
        print(
            f"error: preflight: MPI did not join the ranks within {TIMEOUT_S} s ({socket.gethostname()}).",
            file=sys.stderr,
            flush=True,
        )
        # MPI may hold this thread in C code: leave without its clean-up.
        os._exit(ExitCode.START)

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(TIMEOUT_S)
