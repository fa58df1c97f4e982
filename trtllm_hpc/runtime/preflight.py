"""The preflight: is the world what the plan says?

It runs as a step of its own, one task a rank, and is the only code that
initialises MPI: a process that has done so must not start a server.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import asdict
from typing import Any

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.gpus import ask_gpus
from trtllm_hpc.runtime.records import RankRecord, add_event
from trtllm_hpc.runtime.sweep import shm_free_gib
from trtllm_hpc.runtime.verdict import Expected, Found, doubts, judge

TIMEOUT_VARIABLE = "TRTLLM_HPC_PREFLIGHT_SECONDS"
TIMEOUT_S = 120
"""Bound on MPI's start and on the gather, unless the variable gives another."""

_AFTER_THE_WORD_S = 3
"""How long task 1 waits for task 0 to have spoken; each later task a second longer."""
_LONGEST_WAIT_S = 15


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
    process, one that waits for a peer does so in C code where no signal handler of
    Python's runs, and somebody must be left to say so in one sentence.
    """
    task = int(os.environ.get("SLURM_PROCID") or os.environ.get("TRTLLM_HPC_PROCID") or 0)
    held, holding = os.pipe()
    child = os.fork()
    if child == 0:
        sys.exit(_look_and_judge(paths, expected, task, with_mpi=with_mpi))
    # The step's exit code must be ours: Slurm signals the child as well.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.close(holding)
    within_s = int(os.environ.get(TIMEOUT_VARIABLE) or TIMEOUT_S)
    code = _wait(child, held, within_s)
    if code is None:
        return _refuse(paths, task, f"MPI did not join the ranks within {within_s} s ({TIMEOUT_VARIABLE})")
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


def _wait(child: int, held: int, within_s: float) -> int | None:
    """The child's exit code; ``None`` if it had to be killed because it took too long.

    Args:
        held: a pipe to read whose other end only the child holds, until its end.
    """
    ended, _, _ = select.select([held], [], [], within_s)
    if not ended:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if ended else None


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _look_and_judge(paths: RunPaths, expected: Expected, task: int, *, with_mpi: bool) -> int:
    started_at = time.time()
    gpu_models = _gpu_models()  # before MPI: a process that has initialised it starts no other
    try:
        world = _mpi_world() if with_mpi else _spawned_world(task)
    except _NoMpi as error:
        return _refuse(paths, task, str(error))
    found = _look(world, task, gpu_models)
    _record(paths, found, started_at)
    print(_describe(found), flush=True)
    gathered = world.gather(found)
    verdict = world.share(None if gathered is None else judge(gathered, expected, whole=with_mpi))
    if verdict is not None:
        return _refuse(paths, task, verdict)
    for sentence in [] if gathered is None else doubts(gathered, expected):
        add_event(paths, "serve", "preflight_warning", warning=sentence)
        print(f"warning: preflight: {sentence}.", file=sys.stderr, flush=True)
    if task == 0:
        add_event(paths, "serve", "preflight_ok", world_size=world.size, mpi_library=world.library)
    return ExitCode.OK


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


def _look(world: _World, task: int, gpu_models: list[str]) -> Found:
    gpus = _gpus()
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Found(
        rank=world.rank,
        world_size=world.size,
        task=task,
        host=socket.gethostname(),
        gpus=gpus,
        shm_free_gib=round(shm_free_gib(), 3),
        memlock_kib=None if soft == resource.RLIM_INFINITY else soft // 1024,
        mpi_library=world.library,
        gpu_models=gpu_models,
    )


def _gpus() -> list[str]:
    """The GPUs that this task sees, by number or id."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("SLURM_STEP_GPUS") or ""
    return [gpu for gpu in gpus.split(",") if gpu]


def _gpu_models() -> list[str]:
    """Asked once a node: eight answers at a time would take seconds."""
    first = (os.environ.get("SLURM_LOCALID") or "0") == "0"
    return ask_gpus("name", "driver_version", "memory.total") if first and _gpus() else []


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
    """Say why, in the log and in the events; returns the exit code."""
    if task:
        _let_the_first_speak(task)
        sentence = f"rank {task} on {socket.gethostname()}: {sentence}"
    add_event(paths, "serve", "preflight_failed", reason=sentence)
    print(f"error: preflight: {sentence}.", file=sys.stderr, flush=True)
    return ExitCode.START


def _let_the_first_speak(task: int) -> None:
    """One sentence is enough: the first task to end has the others ended by Slurm.

    If nobody does, this task alone may know: task 0 waits in MPI for ranks that have
    gone, or comes late.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.START))
    time.sleep(min(_AFTER_THE_WORD_S + task - 1, _LONGEST_WAIT_S))
