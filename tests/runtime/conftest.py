from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.runtime.compiled import with_compiled
from tests.runtime.ranks import Ranks
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.render.run_folder import runtime_zipapp
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.process import descendants


@dataclass
class Runtime:
    """A run folder with its zipapp, used as the scripts use it: by a Python without this package."""

    paths: RunPaths
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    isolated: bool = True
    """No library and no variable of Python's reaches it."""

    under: list[str] = field(default_factory=list)
    """A command that runs it."""

    def command(self, *arguments: object) -> list[str]:
        options = ["-I", "-S"] if self.isolated else ["-S"]
        return [*self.under, sys.executable, *options, str(self.paths.runtime), *map(str, arguments)]

    def start(self, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM_", "TRTLLM_HPC_", "CUDA_"))
        }
        process = subprocess.Popen(
            self.command(*arguments),
            env={**inherited, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def __call__(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        output, errors = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@pytest.fixture(scope="session")
def zipapp() -> bytes:
    return with_compiled(runtime_zipapp())


@pytest.fixture
def runtime(tmp_path: Path, zipapp: bytes) -> Iterator[Runtime]:
    """The zipapp in a run folder; whatever it started is gone at the end, or the test fails."""
    paths = RunPaths(tmp_path / "a run's folder")
    paths.make_folders()
    paths.runtime.write_bytes(zipapp)
    made = Runtime(paths)
    yield made
    left = [process for process in made.started if process.poll() is None]
    for process in left:
        for pid in [*descendants(process.pid), process.pid]:
            os.kill(pid, 9)
        process.communicate()
    assert left == []


@pytest.fixture
def ranks(runtime: Runtime, tmp_path: Path) -> Ranks:
    program = tmp_path / "triton server"
    script = Path(__file__).with_name("fake_server.py")
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-I", "-S", str(script)])} "$@"\n')
    program.chmod(0o755)
    return Ranks(runtime, program, free_ports(4))
