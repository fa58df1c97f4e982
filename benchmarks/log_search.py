"""How fast ``logs``, ``logs --grep`` and ``status`` search the logs of a large run, compared with ripgrep.

``python -m benchmarks.log_search [--rounds 5] [--folder FOLDER]``

Two failed runs are made, with 1,024 logs of 200 KB and with 64 logs of 5 MB; no two lines are alike. In each
round every command and ripgrep take turns, on files that are in the page cache. ripgrep searches the same
files for the same: one expression for ``--grep``; for ``status`` the texts that lines with a known cause
contain (``rg -F -f``), and for ``logs`` also those of lines that may be errors.

Bounds: twice ripgrep's time, and 100 MiB. The exit code is 1 when one is
broken, 2 without ripgrep (Debian's package ``ripgrep``).
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

from trtllm_hpc.logs.causes.error_texts import ERROR_TEXTS
from trtllm_hpc.logs.causes.table import causes
from trtllm_hpc.paths import RunPaths, write_json
from trtllm_hpc.runtime.records import RankRecord, add_event

RUNS = {"1,024 logs of 200 KB": (1024, 200_000), "64 logs of 5 MB": (64, 5_000_000)}
EXPRESSION = "Load engine takes: 7.*sec"
ERROR = b"\n[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory (a.h:1)\n"
RATIO = 2.0
MEMORY_MIB = 100.0


@dataclass(frozen=True)
class Cost:
    """What one command took."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def cost_of(command: Sequence[str]) -> Cost:
    """Run a command; its output is read and dropped."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    while process.stdout.read(1 << 16):
        pass
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    return Cost(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def log_text(numbers: random.Random, size: int) -> bytes:
    """Lines as Triton and TensorRT-LLM write them."""
    lines: list[str] = []
    length = 0
    while length < size:
        one, two, share = numbers.randrange(10**6), numbers.randrange(5000), numbers.random()
        at = f"[11/21/2026-23:12:{one % 60:02d}]"
        lines += (
            f'I1121 23:12:07.{one:06d} {two} model_lifecycle.cc:472] "loading: tensorrt_llm:{two}"\n',
            f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {share * 100:.2f} MiB for step {two}\n",
            f"{at} [TRT-LLM] [I] request {numbers.getrandbits(64):016x} has ended\n",
            f"{at} [TRT-LLM] [I] Load engine takes: {share * 1000:.6f} sec\n",
            f'[TensorRT-LLM][INFO] {{"Active Request Count":{one % 64},"KV cache used blocks":{two}}}\n',
        )
        length += sum(map(len, lines[-5:]))
    return "".join(lines)[:size].encode()


def make_run(folder: Path, ranks: int, size: int) -> RunPaths:
    """A failed run: one rank was killed, the others were stopped."""
    paths = RunPaths(folder)
    paths.make_folders()
    plan = {"name": "demo", "scheduler": "local", "stages": [{"name": "serve"}]}
    write_json(paths.plan, plan | {"layout": {"world_size": ranks}})
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


def pairs(paths: RunPaths, texts: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Each command, and what ripgrep is to search for."""
    program = str(Path(sys.executable).parent / "trtllm-hpc")
    patterns = [pattern for cause in causes().values() for pattern in cause.patterns]
    of_causes = [anchor.encode() for pattern in patterns for anchor in pattern.anchors]
    of_errors = [text for text in ERROR_TEXTS if not text.startswith(b"\n")]  # -F knows no start of a line
    for name, some in (("status", of_causes), ("logs", of_causes + of_errors)):
        (texts / name).write_bytes(b"".join(text + b"\n" for text in some))
    folder = str(paths.folder)
    found = {
        name: ([program, name, folder], ["rg", "-F", "-f", str(texts / name), str(paths.logs)])
        for name in ("logs", "status")
    }
    found["logs --grep"] = (
        [program, "logs", folder, "--grep", EXPRESSION],
        ["rg", EXPRESSION, str(paths.logs)],
    )
    return found


def compare(name: str, commands: dict[str, tuple[list[str], list[str]]], rounds: int) -> list[str]:
    """Print the medians; return the bounds that are broken."""
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
        ratio = statistics.median(our.wall_s / its.wall_s for our, its in zip(ours, theirs, strict=True))
        figures = [f"{statistics.median(it.wall_s for it in some):.2f}" for some in (ours, theirs)]
        figures.append(f"{ratio:.1f}")
        figures += [f"{statistics.median(it.cpu_s for it in some):.2f}" for some in (ours, theirs)]
        peak = max(it.peak_mib for it in ours)
        print(f"| {name} | `{what}` | {' | '.join(figures)} | {peak:.0f} |", flush=True)
        if ratio > RATIO:
            broken.append(f"{what}, {name}: {ratio:.1f} times ripgrep's time")
        if peak > MEMORY_MIB:
            broken.append(f"{what}, {name}: {peak:.0f} MiB")
    return broken


def main() -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to make the logs (1.2 GB), by default /tmp")
    arguments = parser.parse_args()
    if shutil.which("rg") is None:
        print("error: there is no rg; apt-get install ripgrep", file=sys.stderr)
        return 2
    broken = []
    print("| logs | command | s | ripgrep, s | ratio | CPU s | ripgrep, CPU s | MiB |\n" + "|---" * 8 + "|")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for number, (name, (ranks, size)) in enumerate(RUNS.items()):
            paths = make_run(Path(folder, f"run{number}"), ranks, size)
            broken += compare(name, pairs(paths, Path(folder)), arguments.rounds)
    for sentence in broken:
        print(f"broken: {sentence}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
