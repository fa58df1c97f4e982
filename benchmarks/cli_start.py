"""Measure how fast the command line starts, compared with the import of click.

``python benchmarks/cli_start.py [--rounds 15]`` runs in turn ``python -c "import click"`` (our help cannot
cost less), ``trtllm-hpc --help`` and ``trtllm-hpc render`` of two shipped job files, one for the reference
backend and one for TensorRT-LLM. It prints the median CPU time of each command and its ratio to the import of
click.

Bounds: help takes at most three times the CPU time of the import of click, render at most half a second of
CPU time. The exit code is 1 if a bound is broken.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HELP_RATIO = 3.0
RENDER_CPU_S = 0.5


def cpu_seconds(command: Sequence[str]) -> float:
    """Run a command, and return its user and system time in seconds as counted by the kernel."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{errors.decode(errors='replace')}")
    return usage.ru_utime + usage.ru_stime


def measure(rounds: int, runs: Path) -> dict[str, float]:
    """Return the median CPU seconds of each command."""
    program = str(Path(sys.executable).parent / "trtllm-hpc")
    job = ["readme-llama3-70b-tp4-pp2", "--cluster", "pyxis"]
    commands = {
        "import click": [sys.executable, "-c", "import click"],
        "trtllm-hpc --help": [program, "--help"],
        "trtllm-hpc render": [program, "render", "tiny-llama", "--cluster", "sandbox", "--runs", str(runs)],
        "trtllm-hpc render TensorRT-LLM": [program, "render", *job, "--runs", str(runs)],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    # The commands take turns, so that a change of the machine's speed affects all of them.
    for round_ in range(rounds + 1):
        for name, command in commands.items():
            seconds = cpu_seconds(command)
            if round_:  # the first round fills the file cache
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="repetitions of each command")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        medians = measure(rounds, Path(folder))
    limit = medians["import click"]
    print(f"median CPU seconds of {rounds} rounds, Python {sys.version.split()[0]}")
    for name, seconds in medians.items():
        print(f"  {name:<30} {seconds:7.3f} s   {seconds / limit:5.2f} x import click")
    broken = []
    if medians["trtllm-hpc --help"] > HELP_RATIO * limit:
        broken.append(f"help costs more than {HELP_RATIO:.0f} times the import of click")
    renders = [seconds for name, seconds in medians.items() if "render" in name]
    if max(renders) > RENDER_CPU_S:
        broken.append(f"render costs more than {RENDER_CPU_S} s of CPU time")
    for sentence in broken:
        print(f"broken: {sentence}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
