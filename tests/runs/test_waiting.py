"""A job that waits in the queue: why, and its expected start."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.cli.typed import Types
from tests.cli.typed import home as home
from tests.cli.typed import types as types
from tests.runs.made import submitted
from tests.scheduler.fake_slurm import FakeSlurm
from trtllm_hpc.paths import RunPaths


def waits(fake_slurm: FakeSlurm, folder: Path, reason: str, **facts: Any) -> RunPaths:
    """A run whose server waits in the queue for this reason, with its companion behind it."""
    serve = fake_slurm.add("PENDING", reason=reason, **facts)
    jobs = {"serve": serve, "companion": fake_slurm.add("PENDING", reason="Dependency")}
    paths = submitted(folder, jobs)
    fake_slurm.assign(paths, jobs)
    return paths


def test_a_waiting_job_has_an_expected_start(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    start = int(time.time()) + 90_000
    waits(fake_slurm, home / "runs" / "demo-1", "Priority", started=start)
    shown = types("status").output
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(start))
    assert "other jobs have a higher priority" in shown and f"expected to start {day})" in shown
