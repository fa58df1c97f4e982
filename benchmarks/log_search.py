"""Compare the speed of ``explain``, ``status``, ``logs`` and ``logs --grep`` with ripgrep's.

``python -m benchmarks.log_search [--rounds 5] [--folder FOLDER]``

The benchmark writes a log of 300 MB with an error in its middle, and two failed runs: one with 1,024 logs of
200 KB, one with 64 logs of 5 MB. No two lines are equal. In each round, every command and ripgrep take turns
on files in the page cache. ripgrep searches the same files: for one expression with ``--grep``, otherwise for
the texts in errors and in lines with a known cause (``rg -f``). Our times do not include the start
of our program. The start is the time in which our program explains an empty log or, for ``--grep``, prints a
line of one log. ``with grep``: ripgrep is not on the path.

Bounds: three times ripgrep's time, 40 MB/s with grep and with ``--grep`` on 1,024 logs, and 100 MiB of
memory. The exit code is 1 if a bound is broken, 2 without ripgrep (Debian's package ``ripgrep``).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.logs.causes.table import tables
from trtllm_hpc.logs.search import expression_of
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.plan_record import PlanRecord, Resources, Stage
from trtllm_hpc.runtime.records import RankRecord, add_event

RUNS = {"1,024 logs of 200 KB": (1024, 200_000), "64 logs of 5 MB": (64, 5_000_000)}
EXPRESSION = "Load engine takes: 7.*sec"
ERROR = b"\n[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory (a.h:1)\n"
RATIO = 3.0
LEAST_MB_PER_S = 40.0
ALONE_BYTES = 300_000_000
MEMORY_MIB = 100.0
PROGRAM = str(Path(sys.executable).parent / "trtllm-hpc")


@dataclass(frozen=True)
class Cost:
    """Time and memory of one command."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    """Largest resident memory, in MiB."""


def cost_of(command: Sequence[str]) -> Cost:
    """Run a command, discard its output, and return its cost."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    while process.stdout.read(1 << 16):
        pass
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1, 3):  # exit codes of `explain`: no cause, known cause, likely cause
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    return Cost(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def log_text(numbers: random.Random, size: int) -> bytes:
    """Return about ``size`` bytes of lines as Triton and TensorRT-LLM write them."""
    lines: list[str] = []
    length = 0
    while length < size:
        micros, step, share = numbers.randrange(10**6), numbers.randrange(5000), numbers.random()
        at = f"[11/21/2026-23:12:{micros % 60:02d}]"
        lines += (
            f'I1121 23:12:07.{micros:06d} {step} model_lifecycle.cc:472] "loading: tensorrt_llm:{step}"\n',
            f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {share * 100:.2f} MiB for step {step}\n",
            f"{at} [TRT-LLM] [I] request {numbers.getrandbits(64):016x} has ended\n",
            f"{at} [TRT-LLM] [I] Load engine takes: {share * 1000:.6f} sec\n",
            f'[TensorRT-LLM][INFO] {{"Active Request Count":{micros % 64},"KV cache used blocks":{step}}}\n',
        )
        length += sum(map(len, lines[-5:]))
    return "".join(lines)[:size].encode()


def make_run(folder: Path, ranks: int, size: int) -> RunPaths:
    """Write the folder of a failed run: one rank failed with an error, the others were stopped."""
    paths = RunPaths(folder)
    paths.make_folders()
    resources = Resources(1, ranks, None, cpus_per_task=1, minutes=10)
    stage = Stage("serve", "demo-serve", str(paths.batch_log("serve")), (resources,))
    PlanRecord(
        name="demo",
        run_folder=str(folder),
        python=sys.executable,
        scheduler="local",
        slurm_conf=None,
        model=None,
        release=None,
        engine_folder=str(folder),
        engine_found=None,
        causes_folder=None,
        stops_server=True,
        world_sizes=(ranks,),
        gpus_per_node=0,
        stages=(stage,),
    ).write(paths)
    add_event(paths, "serve", "stage_begin")
    numbers = random.Random(1)
    for rank in range(ranks):
        code, by, last = (1, None, ERROR) if rank == 5 else (0, "SIGTERM", b"")
        paths.rank_log("serve", rank).write_bytes(log_text(numbers, size) + last)
        record = RankRecord(
            "serve", rank, ranks, "7", f"n{rank}", 100, 1.0, ended_at=9.0, exit_code=code, stopped_by=by
        )
        record.write(paths.rank_record("serve", rank))
    add_event(paths, "serve", "stage_end", exit_code=137)
    return paths


def make_log(path: Path) -> None:
    """Write a log of 300 MB with an error of a GPU's memory in its middle."""
    numbers, error = random.Random(2), b"\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    with path.open("wb") as log:
        for part in range(60):
            log.write(log_text(numbers, ALONE_BYTES // 60) + (error if part == 30 else b""))


def pairs(paths: RunPaths, texts: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Return each command with the ripgrep command that searches the same files."""
    folder, ripgrep = str(paths.folder), ["rg", "-f", str(texts), str(paths.logs)]
    commands = {name: ([PROGRAM, name, folder], ripgrep) for name in ("explain", "status", "logs")}
    commands["logs --grep"] = (
        [PROGRAM, "logs", folder, "--grep", EXPRESSION],
        ["rg", EXPRESSION, str(paths.logs)],
    )
    return commands


def start_of(*words: str) -> float:
    """Return the median of the seconds in which a command that does little ends."""
    return statistics.median(cost_of([PROGRAM, *words]).wall_s for _ in range(5))


def compare(
    name: str,
    commands: dict[str, tuple[list[str], list[str]]],
    rounds: int,
    starts: dict[str, float],
    size: int,
) -> list[str]:
    """Print the medians of each command, and return the broken bounds.

    ``starts`` has the seconds in which a command starts, by its name; ``""`` is the default. ``size``: bytes
    of the logs.
    """
    broken = []
    costs: dict[tuple[str, int], list[Cost]] = {}
    for round_ in range(rounds + 1):
        for what, pair in commands.items():
            for place, command in enumerate(pair):
                cost = cost_of(command)
                if round_:  # the first round fills the page cache
                    costs.setdefault((what, place), []).append(cost)
    for what in commands:
        ours, theirs = costs[what, 0], costs[what, 1]
        pairs_, start_s = list(zip(ours, theirs, strict=True)), starts.get(what, starts[""])
        ratio = statistics.median((our.wall_s - start_s) / its.wall_s for our, its in pairs_)
        speed = size / 1e6 / max(0.001, statistics.median(cost.wall_s for cost in ours) - start_s)
        figures = [f"{statistics.median(cost.wall_s for cost in some):.2f}" for some in (ours, theirs)]
        figures += [f"{ratio:.1f}", f"{speed:.0f}"]
        figures += [f"{statistics.median(cost.cpu_s for cost in some):.2f}" for some in (ours, theirs)]
        peak = max(cost.peak_mib for cost in ours)
        print(f"| {name} | `{what}` | {' | '.join(figures)} | {peak:.0f} |", flush=True)
        # For --grep, `logs` also reads the record of each rank, which takes longer than the search itself.
        if "with grep" in what or ("--grep" in what and name.startswith("1,024")):
            if speed < LEAST_MB_PER_S:
                broken.append(f"{what}, {name}: {speed:.0f} MB/s")
        elif ratio > RATIO:
            broken.append(f"{what}, {name}: {ratio:.1f} times ripgrep's time")
        if peak > MEMORY_MIB:
            broken.append(f"{what}, {name}: {peak:.0f} MiB")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of each command")
    parser.add_argument("--folder", type=Path, help="folder for the logs (1.2 GB); by default /tmp")
    arguments = parser.parse_args()
    if shutil.which("rg") is None:
        print("error: rg is not installed\n  next: apt-get install ripgrep", file=sys.stderr)
        return 2
    broken = []
    heads = ("logs", "command", "s", "ripgrep, s", "ratio", "MB/s", "CPU s", "ripgrep, CPU s", "MiB")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        texts, empty, alone = (Path(folder, name) for name in ("texts", "empty.log", "alone.log"))
        texts.write_text("".join(f"{expression_of(text)}\n" for text in tables().first_pass))
        empty.write_text("fine\n")
        starts = {"": start_of("explain", str(empty))}
        make_log(alone)
        explain, ripgrep = [PROGRAM, "explain", str(alone)], ["rg", "-f", str(texts), str(alone)]
        programs = Path(folder, "bin")
        programs.mkdir()
        (programs / "grep").symlink_to(shutil.which("grep") or "/bin/grep")
        with_grep = ["env", f"PATH={programs}", *explain]
        commands = {"explain": (explain, ripgrep), "explain with grep": (with_grep, ripgrep)}
        broken += compare("one log of 300 MB", commands, arguments.rounds, starts, ALONE_BYTES)
        for number, (name, (ranks, size)) in enumerate(RUNS.items()):
            paths = make_run(Path(folder, f"run{number}"), ranks, size)
            starts["logs --grep"] = start_of("logs", str(paths.folder), "--rank", "0", "--tail", "1")
            broken += compare(name, pairs(paths, texts), arguments.rounds, starts, ranks * size)
    for sentence in broken:
        print(f"broken: {sentence}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
