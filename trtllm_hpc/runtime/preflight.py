"""The preflight: check that ranks, GPUs, engine and files are what the plan says, before a server starts.

It is a job step of its own with one task for each rank, because a process that has initialised MPI must not
start a server.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import FAIL, WARN, Diagnostic, ExitCode, fail
from trtllm_hpc.paths import RunPaths, preflight_step
from trtllm_hpc.runtime.checks import (
    engine_files,
    engine_gpus_per_node,
    engine_version,
    engine_world,
    full_file_system,
    installed_versions,
    locked_memory,
    open_files,
    planned_version,
    report,
    sentence_of,
    shared_memory,
    step_world,
    tokenizer_files,
    transports,
)
from trtllm_hpc.runtime.engine_config import NotAnEngine, read_engine
from trtllm_hpc.runtime.node import locked_memory_kib, query_gpus, shm_free_gib, step_tasks, task_number
from trtllm_hpc.runtime.process import captured
from trtllm_hpc.runtime.records import RankRecord, add_event

TIMEOUT_VARIABLE = "TRTLLM_HPC_PREFLIGHT_SECONDS"
TIMEOUT_S = 120
"""Seconds for MPI's start and the gather, unless the variable sets another limit."""

_AFTER_FIRST_TASK_S = 3
"""Seconds that task 1 waits for task 0 to report a failure; each further task waits a second longer."""
_LONGEST_WAIT_S = 15
_SPAWN_S = 60.0
"""Limit on a spawn in seconds: it takes a second or two, but for ever if MPI waits for a missing daemon."""

_CHILD = "from mpi4py import MPI; p = MPI.Comm.Get_parent(); p.Barrier(); p.Disconnect()"
_PARENT = f"""
import sys
from mpi4py import MPI
spawned = MPI.COMM_SELF.Spawn(sys.executable, args=["-c", {_CHILD!r}], maxprocs=1)
spawned.Barrier()
spawned.Disconnect()
"""

_PACKAGES = ("tensorrt_llm", "torch", "transformers", "nvidia-modelopt", "mpi4py", "vllm", "sglang")


@dataclass(frozen=True)
class Expected:
    """The plan's values, with which the preflight compares."""

    world_size: int
    ranks_per_node: int
    gpus_per_node: int
    engines: tuple[tuple[Path, int], ...] = ()
    """Each engine and the number of ranks that it is built for: fewer than ``world_size`` if there are
    several engines, or several copies of one. Empty for a server without an engine."""
    release: str | None = None
    """Release of TensorRT-LLM that the plan is for; ``None`` for the reference backend."""
    tokenizer: Path | None = None
    """Folder of the tokenizer, unless the engine brings its own."""
    model: Path | None = None
    """Folder of the model, if the server loads the model itself."""
    programs: Sequence[str] = ()
    """Programs that the server needs to start."""
    component: int = 0
    """Index of the heterogeneous job component that this preflight checks."""
    phase: str | None = None
    """The disaggregated phase that runs on this component."""


@dataclass(frozen=True)
class SeenByRank:
    """One rank's view of its node and of the world."""

    rank: int
    world_size: int
    task: int
    """Number of the task in its step, from the launcher and not from MPI."""
    host: str
    gpus: list[str]
    """IDs of the visible GPUs."""
    mpi_library: str
    unseen_engine: str | None = None
    """The first engine whose configuration this node cannot read."""
    step_tasks: int | None = None
    """Number of tasks of the step, from the launcher and not from MPI."""
    findings: list[Diagnostic] = field(default_factory=list)
    """Faults and warnings about the node."""
    gpu_models: list[str] = field(default_factory=list)
    """Name, driver and memory of each GPU; like the next two fields, only from the first rank of a node."""
    gpu_limits: list[str] = field(default_factory=list)
    """Highest clocks of each GPU and of its memory, and its power limit."""
    packages: dict[str, str] = field(default_factory=dict)
    """Versions of the image's packages that serve."""


def run_preflight(
    paths: RunPaths, engine: Sequence[Path], engine_ranks: Sequence[int], *, without_mpi: bool, **planned: Any
) -> int:
    """Gather all ranks' views and compare them with the plan; return 0, or the exit code of a refused start.

    ``engine_ranks`` has the number of ranks that each ``engine`` is built for, by default the world size;
    ``planned`` are further fields of :class:`Expected`.

    MPI is initialised in a child process. A library without a launcher aborts its process, and a library that
    waits for a peer does so in C code, where Python runs no signal handler. The parent then still reports the
    fault in one sentence.
    """
    ranks = engine_ranks or [planned["world_size"]] * len(engine)
    expected = Expected(**planned, engines=tuple(zip(engine, ranks, strict=True)))
    task = task_number()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        sys.exit(_gather_and_check(paths, expected, task, with_mpi=not without_mpi))
    # Survive SIGTERM, because the step's exit code must be this process's: Slurm signals the child as well.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.close(write_end)
    limit_s = int(os.environ.get(TIMEOUT_VARIABLE) or TIMEOUT_S)
    # The read end becomes readable when the child ends, because only the child holds the write end.
    if not (has_ended := bool(select.select([read_end], [], [], limit_s)[0])):
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not has_ended:
        sentence = f"MPI did not join the ranks within {limit_s} s ({TIMEOUT_VARIABLE})"
        return _refuse(paths, expected, task, sentence)
    if code in (ExitCode.OK, ExitCode.START):
        return code
    if code == -signal.SIGTERM:
        return ExitCode.START  # the step was ended from outside, so there is no fault of MPI's to report
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    sentence = f"MPI ended its process ({how}) before the ranks were joined; its own messages in the log say"
    advice = "why (if they do not, compare the profile's mpi with `srun --mpi=list`)"
    return _refuse(paths, expected, task, f"{sentence} {advice}")


def _gather_and_check(paths: RunPaths, expected: Expected, task: int, *, with_mpi: bool) -> int:
    step = preflight_step(expected.component)
    record = RankRecord.begun(step, task, expected.world_size)
    full = full_file_system(record.host, paths.folder)
    if full is not None:
        return _refuse(paths, expected, task, sentence_of(full))
    seen = _look(expected)
    world: Any = None
    library = "no MPI (local profile)"
    if with_mpi:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            why = f"{sys.executable} cannot use MPI ({error}): it needs mpi4py (pip install mpi4py)"
            return _refuse(paths, expected, task, f"{why} and an MPI library built with PMIx")
        world, library = MPI.COMM_WORLD, mpi_library(MPI)
    rank, size = (world.Get_rank(), world.Get_size()) if with_mpi else (task, step_tasks() or 1)
    own = SeenByRank(rank=rank, world_size=size, task=task, mpi_library=library, **seen)
    ended: dict[str, Any] = {"ended_at": time.time(), "exit_code": 0, "details": asdict(own)}
    replace(record, world_size=size, **ended).write(paths.rank_record(step, task))
    print(
        f"preflight: rank {rank} of {size} on {own.host}, GPUs {','.join(own.gpus) or 'none'}, {library}",
        flush=True,
    )
    if with_mpi:
        gathered: list[SeenByRank] | None = world.gather(own, root=0)
        findings = [] if gathered is None else compare(gathered, expected, all_ranks=True)
        findings = world.bcast(findings, root=0)
    else:  # without MPI each rank checks only itself
        findings = compare([own], expected, all_ranks=False)
    if any(finding.state == FAIL for finding in findings):
        return _refuse(paths, expected, task, sentence_of(findings[0]))
    if task == 0:
        report(paths, findings)
        add_event(paths, "serve", "preflight_ok", world_size=own.world_size, mpi_library=library)
    return ExitCode.OK


def mpi_library(mpi: Any) -> str:
    """Return name and version of the MPI library that the module ``mpi4py.MPI`` uses."""
    return str(mpi.Get_library_version()).split(",")[0].split("\n")[0].strip("\0 ")


# One rank's view --------------------------------------------------------------------------


def _look(expected: Expected) -> dict[str, Any]:
    """Return the fields of SeenByRank that need no MPI.

    Called before MPI is initialised, because a process that has initialised MPI must not start programs.
    """
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("SLURM_STEP_GPUS") or ""
    parts = ("config.json", "decoder")
    host = socket.gethostname()
    checks = [
        shared_memory(host, shm_free_gib(), expected.ranks_per_node),
        open_files(host, resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ]
    if missing := [program for program in expected.programs if shutil.which(program) is None]:
        message = f"there is no {' and no '.join(missing)} on {host}"
        hint = "take an image with TensorRT-LLM 0.19 or later, or put them on PATH"
        checks.append(fail(message, hint))
    if expected.gpus_per_node and expected.world_size > expected.ranks_per_node:
        checks += [locked_memory(host, locked_memory_kib()), transports(host, os.environ)]
    if expected.model is not None and not os.access(expected.model / "config.json", os.R_OK):
        file = f"{expected.model}/config.json"
        message = f"{file} cannot be read on {host}, so no model can be loaded from there"
        hint = "correct model.path, or mount its folder (container.mounts in the profile)"
        checks.append(fail(message, hint))
    unseen = (
        engine
        for engine, _ in expected.engines
        if not any(os.access(engine / part, os.R_OK) for part in parts)
    )
    seen: dict[str, Any] = {
        "host": host,
        "gpus": [gpu for gpu in gpus.split(",") if gpu],
        "unseen_engine": next((os.path.realpath(folder) for folder in unseen), None),
        "step_tasks": step_tasks(),
        "findings": [finding for finding in checks if finding is not None and finding.state in (FAIL, WARN)],
    }
    if (os.environ.get("SLURM_LOCALID") or "0") == "0":  # once for all ranks of a node
        seen["packages"] = installed_versions(_PACKAGES)
        if seen["gpus"]:
            seen["gpu_models"] = query_gpus("name", "driver_version", "memory.total")
            limits = ("clocks.max.sm", "clocks.max.memory", "enforced.power.limit")
            seen["gpu_limits"] = query_gpus(*limits)
    return seen


# Comparison with the plan -----------------------------------------------------------------


def compare(gathered: list[SeenByRank], expected: Expected, *, all_ranks: bool) -> list[Diagnostic]:
    """Return the first fault alone, or else all warnings.

    ``all_ranks``: whether ``gathered`` has all ranks of the step.
    """
    ranks, warnings = sorted(gathered, key=lambda seen: seen.rank), []
    for finding in chain(_check_world(ranks, expected, all_ranks), run_checks(gathered, expected)):
        if finding.state == FAIL:
            return [finding]
        if finding.state == WARN:
            warnings.append(finding)
    return warnings


def _check_world(ranks: list[SeenByRank], expected: Expected, all_ranks: bool) -> Iterator[Diagnostic]:
    """Yield faults in the size of the step and of the world, and in the ranks' nodes and GPUs."""
    first = ranks[0]
    if (wrong := step_world(first.step_tasks, expected.world_size)) is not None:
        yield wrong
    if first.world_size != expected.world_size:
        yield Diagnostic(
            "",
            f"the world has {first.world_size} rank{'s' * (first.world_size != 1)}, but the plan says "
            f"{expected.world_size}: {first.mpi_library} was not joined by the launcher "
            "(does `srun --mpi=list` show the profile's mpi plugin, and is this MPI built for it?)",
        )
    for seen in ranks if all_ranks else ():
        beside = ranks[seen.rank - seen.rank % expected.ranks_per_node]
        if seen.host != beside.host:
            yield Diagnostic(
                "",
                f"rank {seen.rank} is on {seen.host}, but the plan puts it beside rank {beside.rank} on "
                f"{beside.host}: ranks must be distributed in blocks of {expected.ranks_per_node} a node",
            )
    for seen in ranks:
        if len(seen.gpus) < expected.gpus_per_node:
            yield Diagnostic(
                "",
                f"rank {seen.rank} on {seen.host} sees {len(seen.gpus)} GPU(s) "
                f"({', '.join(seen.gpus) or 'none'}), "
                f"but the plan gives each node {expected.gpus_per_node}, and every task must see them all",
            )


def run_checks(ranks: list[SeenByRank], expected: Expected) -> Iterator[Diagnostic]:
    """Yield the findings of each host, then the checks of release, engines and tokenizer."""
    unseen = [seen for seen in ranks if seen.unseen_engine]
    for seen in unseen if len(unseen) < len(ranks) else ():  # seen by no rank: the engine may be missing
        message = f"rank {seen.rank} on {seen.host} does not see the engine {seen.unseen_engine}"
        hint = (
            "other ranks see it: mount its file system, or set engines_folder to a folder that all nodes see"
        )
        yield fail(message, hint)
    for _, seen in sorted({seen.host: seen for seen in reversed(ranks)}.items()):
        yield from seen.findings
    installed = installed_versions(["tensorrt_llm"]).get("tensorrt_llm")
    if expected.release is not None:
        yield planned_version(expected.release, installed)
    for engine, built_for in expected.engines:
        yield from _check_engine(engine, built_for, expected, installed, len(ranks[0].gpus))
    if expected.tokenizer is not None:
        yield tokenizer_files(expected.tokenizer)


def _check_engine(
    folder: Path, built_for: int, expected: Expected, installed: str | None, visible_gpus: int
) -> Iterator[Diagnostic]:
    try:
        engine = read_engine(folder)
    except NotAnEngine as error:
        yield fail(str(error), f"run the build stage first; if it has run, srun ls {folder}")
        return
    yield engine_world(engine, built_for)
    yield engine_files(engine)
    yield engine_version(engine, installed or expected.release)
    if built_for == expected.world_size:
        # Only then a rank's number decides its GPU; copies of one engine get their GPUs by gpu_device_ids.
        yield engine_gpus_per_node(engine, expected.world_size, expected.ranks_per_node, visible_gpus)


# A refused start --------------------------------------------------------------------------


def _refuse(paths: RunPaths, expected: Expected, task: int, sentence: str) -> int:
    """Report why the start is refused, in the log and in the events; return the exit code."""
    if task:
        # Let task 0 report first, whereupon Slurm ends the other tasks. If task 0 does not report, it may be
        # late or wait in MPI for lost ranks, and only this task knows the reason.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.START))
        time.sleep(min(_AFTER_FIRST_TASK_S + task - 1, _LONGEST_WAIT_S))
        sentence = f"rank {task} on {socket.gethostname()}: {sentence}"
    if expected.phase is not None:
        sentence = f"phase {expected.phase}: {sentence}"
    return report(paths, [Diagnostic("", sentence)])


# Spawning, by which an orchestrator's server starts its workers ------------------------------


def check_spawn(paths: RunPaths, launcher: str, *, is_last: bool) -> int:
    """Spawn a process that does nothing (MPI_Comm_spawn); return 0 if that works, else START.

    Slurm's PMIx refuses to spawn in most versions, and only when it is tried; Open MPI's own launcher can
    spawn. The attempt runs in a child process, because an MPI that cannot spawn may end its process or wait
    for ever. ``launcher`` (``srun`` or ``mpirun``) started this process; with ``is_last`` no other is tried.
    """
    reason: str | None = None
    try:
        done = captured([sys.executable, "-c", _PARENT], _SPAWN_S)
    except subprocess.TimeoutExpired:
        reason = f"nothing had happened after {_SPAWN_S:.0f} s"
    else:
        if done.returncode:
            lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            named = [line for line in lines if "MPI_ERR" in line or "Error:" in line]
            reason = (named or lines or [f"exit code {done.returncode}"])[-1]
    add_event(paths, "serve", "spawn", launcher=launcher, works=reason is None, obstacle=reason)
    if reason is None:
        print(f"preflight: processes can be spawned (MPI_Comm_spawn) under {launcher}", flush=True)
        return ExitCode.OK
    what = f"{launcher} does not offer MPI_Comm_spawn ({reason})"
    if is_last:
        hint = "set serve.mode to leader, or take an image with Open MPI 4.1"
        print(f"error: preflight: workers cannot be spawned: {what}; {hint}", file=sys.stderr, flush=True)
    else:
        print(f"preflight: {what}; trying mpirun", flush=True)
    return ExitCode.START
