"""NVIDIA's perf_analyzer, from the last tritonclient wheel that includes it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from benchmarks.load.figures import CLOSED, Figures
from benchmarks.load.server import INSTANT, BenchmarkFailed, Server
from benchmarks.triton import wheel_folder

_WHEEL = "tritonclient==2.41.1"
_PLATFORM = "manylinux1_x86_64"
_PACKAGE = "libb64-0d"
_WINDOWS = 3
"""perf_analyzer repeats its window at least so often and gives the mean."""
_NEVER_UNSTABLE = "1000000"
"""Percent that windows may differ: the rounds show the spread, more windows would not be the same work."""


class PerfAnalyzer:
    """The program, and how to run it.

    Args:
        folder: kept between runs; the wheel is downloaded into it when missing.
    """

    def __init__(self, folder: Path) -> None:
        self._program = folder / "perf_analyzer"
        self._libraries = folder / "lib"
        if not self._program.exists():
            _download(folder, self._program)
        _link_cuda_runtime(self._libraries)
        self._check()

    def measure(self, scenario: str, server: Server, level: int, seconds: float, folder: Path) -> Figures:
        """Load ``server`` in ``scenario`` for about ``seconds``."""
        table = folder / "perf_analyzer.csv"
        table.unlink(missing_ok=True)
        before = server.answered()
        cpu_s = self._run(
            f"-m{INSTANT}",
            f"-u{server.endpoint.grpc}",
            "-igrpc",
            "--async",
            f"--concurrency-range={level}" if scenario == CLOSED else f"--request-rate-range={level}",
            f"-p{int(seconds * 1000 / _WINDOWS)}",
            f"-s{_NEVER_UNSTABLE}",
            f"-r{_WINDOWS}",
            f"-f{table}",
        )
        answered = server.answered() - before
        (row,) = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
        return Figures(
            rate_per_s=float(row["Inferences/Second"]),
            cpu_us_per_request=cpu_s / answered * 1e6,
            p50_ms=float(row["p50 latency"]) / 1e3,
            p99_ms=float(row["p99 latency"]) / 1e3,
        )

    def _check(self) -> None:
        said = subprocess.run([self._program, "--version"], env=self._env, capture_output=True, text=True)
        if "libb64" in said.stderr:
            raise BenchmarkFailed(f"perf_analyzer needs a Debian package: apt-get install {_PACKAGE}")
        if "error while loading" in said.stderr:
            raise BenchmarkFailed(f"perf_analyzer does not start: {said.stderr.strip()}")

    def _run(self, *arguments: str) -> float:
        """Run it; returns its CPU seconds, including start and exit."""
        process = subprocess.Popen(
            [self._program, *arguments],
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        said = process.stdout.read()
        process.stdout.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise BenchmarkFailed(f"perf_analyzer failed:\n{said[-2000:]}")
        return usage.ru_utime + usage.ru_stime

    @property
    def _env(self) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(self._libraries)}


def _download(folder: Path, program: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    done = subprocess.run([*command, f"--platform={_PLATFORM}", _WHEEL], capture_output=True, text=True)
    wheels = list(folder.glob("tritonclient-*manylinux*.whl"))
    if done.returncode or not wheels:
        raise BenchmarkFailed(f"{_WHEEL} could not be downloaded:\n{done.stderr.strip()}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("/bin/perf_analyzer")]
        aside = program.with_suffix(".part")
        aside.write_bytes(wheel.read(name))
    aside.chmod(0o755)
    aside.replace(program)


def _link_cuda_runtime(folder: Path) -> None:
    """Link the CUDA runtime that nvidia-pytriton carries: perf_analyzer is linked against it even on CPUs."""
    found = sorted(wheel_folder().parent.glob("nvidia_pytriton.libs/libcudart-*.so.*"))
    if not found:
        raise BenchmarkFailed("nvidia-pytriton carries no libcudart: install the pinned version")
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "libcudart.so.12"
    link.unlink(missing_ok=True)
    link.symlink_to(found[0])
