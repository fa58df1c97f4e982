"""How long ``trtllm-hpc runs`` takes with a thousand runs.

``python -m benchmarks.runs_list [--rounds 5]`` makes 980 runs that have ended and 20 that are running on a
fake Slurm, lists them once, so that the ended ones are remembered, and prints the median time of listing
them again, in a process of its own each time, beside the time of ``trtllm-hpc --help``.

Bound: one second. The exit code is 1 when it is broken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.runs.made import run_with
from tests.scheduler.fake_slurm import FakeSlurm
from trtllm_hpc.paths import STAGES, RunPaths
from trtllm_hpc.runtime.records import add_event
from trtllm_hpc.scheduler.submission_record import SubmissionRecord

ENDED, LIVE = 980, 20
BOUND_S = 1.0


def make_runs(folder: Path, slurm: FakeSlurm) -> None:
    """Copies of a run that has completed, and of one that is running."""
    kinds = (("done", ENDED, ("COMPLETED",) * 3), ("live", LIVE, ("COMPLETED", "RUNNING", "PENDING")))
    for name, count, states in kinds:
        paths = run_with(slurm, folder / f"{name}-0", *states)
        for stage in STAGES:
            add_event(paths, stage, "stage_begin")
        for number in range(1, count):
            copy = RunPaths(folder / f"{name}-{number}")
            shutil.copytree(paths.events, copy.events)
            shutil.copy2(paths.plan, copy.folder)
            record = SubmissionRecord("slurm")
            for stage, state in zip(STAGES, states, strict=True):
                record.add(copy, stage, slurm.add(state, exit="0:0", nodes="n1"))
            record.complete = True
            record.write(copy)
            slurm.assign(copy, {stage: job.job_id for stage, job in record.stages.items()})


def seconds(*words: str, environment: dict[str, str]) -> float:
    """The wall time of one command."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "trtllm_hpc", *words]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        slurm, runs = FakeSlurm(Path(folder) / "slurm"), Path(folder) / "runs"
        make_runs(runs, slurm)
        environment = {**os.environ, "PATH": f"{slurm.bin}:{os.environ['PATH']}"}
        words = ("runs", "--runs", str(runs))
        first_s = seconds(*words, environment=environment)
        help_s = statistics.median(seconds("--help", environment=environment) for _ in range(rounds))
        again_s = statistics.median(seconds(*words, environment=environment) for _ in range(rounds))
    print(f"trtllm-hpc --help       {help_s:.2f} s")
    print(f"{ENDED + LIVE} runs, first time   {first_s:.2f} s")
    print(f"{ENDED + LIVE} runs, remembered   {again_s:.2f} s (bound {BOUND_S:.2f} s)")
    return 0 if again_s <= BOUND_S else 1


if __name__ == "__main__":
    sys.exit(main())
