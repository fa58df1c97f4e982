"""The job of a sweep with ``allocation: one``, which serves and measures one variant after another.

Each variant's own scripts run unchanged on this job's nodes, as sbatch would run them.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.paths import STAGES, RunPaths, read_json
from trtllm_hpc.runtime.node import query_gpus
from trtllm_hpc.runtime.process import on_signals, output_of, run_group
from trtllm_hpc.runtime.records import TOKEN_VARIABLE, add_event, read_events
from trtllm_hpc.runtime.stage import chain_is_complete, end

_STOP_S = 60.0
"""Seconds from SIGTERM to SIGKILL, so that a server can stop. Slurm's own KillWait may be shorter."""
_IDLE_TIMEOUT_S = 60.0
_IDLE_MIB = 2048
"""A GPU with less memory in use counts as empty: the driver and its daemons need up to a GiB."""
_COMMAND_TIMEOUT_S = 30.0


def run_variants(folder: Path, names: Sequence[str], minutes: float) -> int:
    """Run the variants of a sweep in their order; return 1 if any was skipped.

    Args:
        folder: the sweep's folder.
        names: the variants' folders in it.
        minutes: the time limit of this job.
    """
    ends_at, longest_s, skipped, signals = time.monotonic() + minutes * 60, 0.0, 0, list[str]()
    on_signals(signals.append)
    for name in names:
        run, reason = RunPaths(folder / name), None
        if signals:
            reason = f"the sweep's job was ended ({signals[-1]})"
        elif time.monotonic() + 1.1 * longest_s >= ends_at:
            reason = "the sweep's job has too little time left"
        elif busy := _busy_gpus():
            reason = f"the GPUs of the variant before are still in use: {', '.join(busy)}"
        if reason is not None:
            skipped += 1
            print(f"error: variant {name} was not run: {reason}", file=sys.stderr, flush=True)
            if not _cancelled(run):
                add_event(run, "serve", "stage_cancelled", reason=reason)
            continue
        # The job may begin before its submission has written the records of all variants.
        token = os.environ.get(TOKEN_VARIABLE) or _token(run)
        if token is None or _cancelled(run) or not chain_is_complete(run, token):
            continue
        print(f"variant {name} begins", flush=True)
        begun_at = time.monotonic()
        code = _run_variant(run, signals)
        longest_s = max(longest_s, time.monotonic() - begun_at)
        print(f"variant {name} has ended with exit code {code}", flush=True)
        # A killed script may have left job steps, which would hold the GPUs.
        if (job := os.environ.get("SLURM_JOB_ID")) is not None:
            look = ["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i"]
            steps = (output_of(look, _COMMAND_TIMEOUT_S) or "").split()
            if left := [step for step in steps if step.rpartition(".")[2].isdigit()]:
                output_of(["scancel", *left], _COMMAND_TIMEOUT_S)
    return 1 if skipped else 0


def _run_variant(run: RunPaths, signals: Collection[str]) -> int:
    """Run a variant's stages that have not completed: first the build, then all others at once."""
    stages = []
    for stage in STAGES:
        ends = [event for event in read_events(run, stage) if event.name == "stage_end"]
        if run.sbatch(stage).exists() and not (ends and ends[-1].data.get("exit_code") == 0):
            stages.append(stage)
    if "build" in stages and (code := _run_stage(run, "build", signals)):
        return code
    others = [stage for stage in stages if stage != "build"]
    # At once, so that a local companion runs beside its server; in a Slurm job the server's script starts it.
    with ThreadPoolExecutor(len(STAGES)) as threads:
        codes = list(threads.map(lambda stage: _run_stage(run, stage, signals), others))
    return next((code for code in codes if code), 0)


def _run_stage(run: RunPaths, stage: str, signals: Collection[str]) -> int:
    with run.batch_log(stage).open("ab") as log:
        code = run_group(
            ["bash", str(run.sbatch(stage))],
            {**os.environ, TOKEN_VARIABLE: _token(run) or ""},
            lambda: bool(signals) or _cancelled(run),
            output=log.fileno(),
            grace_s=_STOP_S,
        )
    marks = [event.name for event in read_events(run, stage) if event.name.startswith("stage_")]
    if marks[-1:] == ["stage_begin"]:
        end(run, stage, code)  # the stage's script was killed, and recorded no end
    return code


def _token(run: RunPaths) -> str | None:
    with suppress(ValueError, OSError, AttributeError):
        record = read_json(run.jobs)
        return None if record is None else str(record.get("token"))
    return None


def _cancelled(run: RunPaths) -> bool:
    return any(event.name == "stage_cancelled" for event in read_events(run))


def _busy_gpus() -> list[str]:
    """Return the GPUs of this job that are still in use after a minute, as ``node2: GPU 1 (4096 MiB)``."""
    deadline, nodes = time.monotonic() + _IDLE_TIMEOUT_S, os.environ.get("SLURM_JOB_NUM_NODES")
    step = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--mpi=none", "--overlap"]
    step += [sys.executable, sys.argv[0], "gpus-in-use"]
    while busy := gpus_in_use() if nodes is None else output_of(step, _COMMAND_TIMEOUT_S):
        if time.monotonic() > deadline:
            break
        time.sleep(1.0)
    return (busy or "").splitlines()


def gpus_in_use() -> str:
    """Return this process's GPUs whose memory is in use, one a line; empty without nvidia-smi.

    A line looks like ``node2: GPU 1 (4096 MiB)``.
    """
    host, busy = socket.gethostname(), []
    for line in query_gpus("index", "memory.used"):
        index, _, used = line.partition(",")
        mib = used.strip().partition(" ")[0]
        if mib.isdigit() and int(mib) > _IDLE_MIB:
            busy.append(f"{host}: GPU {index} ({mib} MiB)")
    return "\n".join(busy)
