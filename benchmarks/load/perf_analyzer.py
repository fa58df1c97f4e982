"""NVIDIA's perf_analyzer, from the last tritonclient wheel that includes it."""

from __future__ import annotations

import csv
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

from benchmarks.load.figures import CLOSED, LEVELS, Figures
from benchmarks.load.server import INSTANT, BenchmarkFailed, answered
from benchmarks.triton import wheel_folder
from trtllm_hpc.runtime.records import Endpoint

_WHEEL = "tritonclient==2.41.1"
_PLATFORM = "manylinux1_x86_64"
_PACKAGE = "libb64-0d"
_WINDOWS = 3
"""Number of windows that perf_analyzer measures at least; it reports their mean."""
_NEVER_UNSTABLE = "1000000"
"""Percent by which windows may differ. Our rounds show the spread; more windows would change the work."""


class PerfAnalyzer:
    """Runs perf_analyzer.

    Args:
        folder: kept between runs; the wheel is downloaded into it if perf_analyzer is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._program, libraries = folder / "perf_analyzer", folder / "lib"
        if not self._program.exists():
            _download(folder, self._program)
        _link_cuda_runtime(libraries)
        self._environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
        errors = self._run("--version").stderr
        if "libb64" in errors:
            raise BenchmarkFailed(f"perf_analyzer needs a Debian package: apt-get install {_PACKAGE}")
        if "error while loading" in errors:
            raise BenchmarkFailed(f"perf_analyzer does not start: {errors.strip()}")

    def measure(self, scenario: str, server: Endpoint, seconds: float, folder: Path) -> Figures:
        """Load ``server`` for about ``seconds`` as ``scenario`` requires, and return the figures."""
        table, before, level = folder / "perf_analyzer.csv", answered(server), LEVELS[scenario]
        table.unlink(missing_ok=True)
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = self._run(
            f"-m{INSTANT}",
            f"-u{server.grpc}",
            "-igrpc",
            "--async",
            f"--concurrency-range={level}" if scenario == CLOSED else f"--request-rate-range={level}",
            f"-p{int(seconds * 1000 / _WINDOWS)}",
            f"-s{_NEVER_UNSTABLE}",
            f"-r{_WINDOWS}",
            f"-f{table}",
        )
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise BenchmarkFailed(f"perf_analyzer failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
        # Includes the start and the exit of perf_analyzer.
        cpu_s = ended.ru_utime - began.ru_utime + ended.ru_stime - began.ru_stime
        (row,) = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
        return {
            "rate_per_s": float(row["Inferences/Second"]),
            "cpu_us_per_request": cpu_s / (answered(server) - before) * 1e6,
            "p50_ms": float(row["p50 latency"]) / 1e3,
            "p99_ms": float(row["p99 latency"]) / 1e3,
        }

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self._program, *words], env=self._environment, capture_output=True, text=True)


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
    """Link the CUDA runtime of nvidia-pytriton's wheel, which perf_analyzer needs even without a GPU."""
    libraries = sorted(wheel_folder().parent.glob("nvidia_pytriton.libs/libcudart-*.so.*"))
    if not libraries:
        raise BenchmarkFailed("nvidia-pytriton contains no libcudart: install the version in constraints.txt")
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "libcudart.so.12"
    link.unlink(missing_ok=True)
    link.symlink_to(libraries[0])
