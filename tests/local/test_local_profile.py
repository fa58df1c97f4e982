"""The whole chain on this machine, without Slurm: submitit's local executor and a real tritonserver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ended import ended_when_asked
from tests.schemas.check import documented
from tests.sharing import engine_for
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Endpoint, RankRecord, read_events

pytestmark = pytest.mark.triton

SECTIONS: dict[str, Any] = {
    "name": "here",
    "model": {"synthetic": "stand-in"},
    "engine": {"tensor_parallel": 2},
    "repository": {"bls_instances": 1},
    "serve": {"ready_timeout_seconds": 120},
    "companion": {
        "benchmark": {
            "requests": 4,
            "rate_per_second": 4.0,
            "max_tokens": 2,
            "warmup_requests": 0,
            # This is about the life of jobs: whether the figures can be believed is no matter here.
            "min_requests": 1,
            "min_window_seconds": 0.0,
            "max_late_share": 1.0,
        }
    },
}


def types(*words: str | Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "trtllm-hpc"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)


def built(ranks: int = 2) -> dict[str, Any]:
    """The section of a job file for an engine that is there already.

    A second rank takes as long to start as the first: tests of something else do without it.
    """
    return {"tensor_parallel": ranks, "directory": str(engine_for(ranks))}


def submit(folder: Path, *words: str, **sections: Any) -> tuple[subprocess.CompletedProcess[str], RunPaths]:
    job = folder / "job.yaml"
    job.write_text(json.dumps({**SECTIONS, **sections}))
    answer = types("submit", job, "--cluster", "local", "--runs", folder / "my runs", "--json", *words)
    return answer, RunPaths(documented("submit", answer.stdout)["folder"])


def state(run: RunPaths) -> str:
    return str(documented("status", types("status", run.folder, "--json").stdout)["state"])


def processes_of(run: RunPaths) -> list[str]:
    """Command lines of processes that name the run folder, or whose working environment does."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(run.folder) in command + environment:
                found.append(command)
    return found


def leftovers(run: RunPaths) -> list[str]:
    begun = [event.data["job_id"] for event in read_events(run, "serve") if event.name == "stage_begin"]
    prefix = f"trt{begun[-1]}_" if begun else "trtlocal"
    folders = (Path("/dev/shm"), Path("/tmp"))
    files = [file.name for folder in folders for file in folder.iterdir() if file.name.startswith(prefix)]
    return files + processes_of(run)


def test_the_same_chain_ends_well(tmp_path: Path) -> None:
    answer, run = submit(tmp_path, "--wait")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert documented("submit", answer.stdout)["state"] == "completed"
    answers = json.loads(run.answer.read_text())["answers"]
    assert len(answers) == 1 and answers[0]["text"]
    assert "output" in run.measurement("benchmark").table.read_text()
    assert all(ended_when_asked(run, rank) for rank in range(2)), list(run.ranks.iterdir())
    assert eventually(lambda: leftovers(run) == [], 10), leftovers(run)


def open_to_other_users(run: RunPaths) -> list[str]:
    """Shared memory that other users may read, and ports of the server that other machines reach."""
    record = RankRecord.read(run.rank_record("serve", 0))
    endpoint = Endpoint.read(run.endpoint)
    assert record is not None and endpoint is not None
    regions = list(Path("/dev/shm").glob(f"trt{record.job_id}_*"))
    assert regions
    files = [str(region) for region in regions if region.stat().st_mode & 0o077]
    ports = {f"{port:04X}" for port in (endpoint.http_port, endpoint.grpc_port, endpoint.metrics_port)}
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].rpartition(":")[2] in ports]
    assert len(listening) == len(ports)
    # 127.0.0.1 in this machine's order of bytes; gRPC has it as an address of IPv6 (::ffff:127.0.0.1).
    return files + [place for place in listening if "0100007F:" not in place]


def test_cancel_leaves_nothing(tmp_path: Path) -> None:
    """The output is a pipe: the command must end although the run goes on."""
    _, run = submit(tmp_path, engine=built(1))
    assert eventually(lambda: run.endpoint.exists(), 60), state(run)
    assert open_to_other_users(run) == []
    cancelled = types("cancel", run.folder)
    assert cancelled.returncode == 0, cancelled.stderr
    assert state(run) == "cancelled"
    assert eventually(lambda: leftovers(run) == [], 10), leftovers(run)


def test_stages_that_wait_for_a_killed_build_end(tmp_path: Path) -> None:
    """kill -9 of everything that the build stage is: nobody is left to write its end."""
    _, run = submit(tmp_path)
    assert eventually(lambda: read_events(run, "build") != [], 30)
    build = json.loads(run.jobs.read_text())["stages"]["build"]["job_id"]
    group = json.loads(run.stage_events("build").read_text().splitlines()[0])["data"]["group"]
    os.kill(int(build), signal.SIGKILL)
    for line in subprocess.run(
        ["ps", "--ppid", build, "-o", "pid="], capture_output=True, text=True
    ).stdout.split():
        os.kill(int(line), signal.SIGKILL)
    os.killpg(group, signal.SIGKILL)
    assert eventually(lambda: state(run) == "failed", 10), state(run)
    assert eventually(lambda: processes_of(run) == [], 20), processes_of(run)


def test_a_killed_script_takes_its_processes_along(tmp_path: Path) -> None:
    _, run = submit(tmp_path, engine=built(), companion={"enabled": False})
    assert eventually(lambda: run.endpoint.exists(), 60), state(run)
    group = json.loads(run.stage_events("serve").read_text().splitlines()[0])["data"]["group"]
    os.kill(group, signal.SIGKILL)  # bash alone: spawn, supervisors and servers live on
    assert eventually(lambda: state(run) == "failed", 40), state(run)
    assert eventually(lambda: processes_of(run) == [], 15), processes_of(run)
    assert not run.endpoint.exists()


def test_a_failed_build_ends_the_chain_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    answer, run = submit(tmp_path, "--wait", "--ignore", "model-files", model={"path": "/no/such/model"})
    assert answer.returncode == ExitCode.BUILD, answer.stdout + answer.stderr
    assert time.monotonic() - started < 30
    assert eventually(lambda: processes_of(run) == [], 5), processes_of(run)
