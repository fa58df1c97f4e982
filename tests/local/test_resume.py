"""A run that failed on this machine goes on in the same folder, with a real tritonserver."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.schemas.check import documented
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import RankRecord

from .test_local_profile import built, leftovers, state, submit, types

pytestmark = pytest.mark.triton


def killed(folder: Path) -> RunPaths:
    """A run that has failed, since one of its ranks was killed before it was measured."""
    _, run = submit(folder, engine=built())
    assert eventually(lambda: run.endpoint.exists(), 60), state(run)
    record = RankRecord.read(run.rank_record("serve", 1))
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    assert eventually(lambda: state(run) == "failed", 15), state(run)
    assert eventually(lambda: leftovers(run) == [], 30), leftovers(run)
    return run


@pytest.mark.thorough
def test_a_failed_run_is_resumed_to_its_end(tmp_path: Path) -> None:
    run = killed(tmp_path)
    resumed = types("resume", run.folder, "--wait", "--json")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    status = documented("resume", resumed.stdout)
    assert status["state"] == "completed" and status["run_id"] == run.run_id
    assert "output" in run.measurement("benchmark").table.read_text()
    assert "rank 1 on" in (run.attempts / "1" / "logs" / "serve_1.out").read_text()
    again = types("resume", run.folder)
    assert again.returncode == ExitCode.SUBMISSION and "nothing to resume" in again.stderr
    assert eventually(lambda: leftovers(run) == [], 10), leftovers(run)


def test_a_live_run_is_not_resumed_and_a_cancelled_one_is(tmp_path: Path) -> None:
    _, run = submit(tmp_path, engine=built(), companion={"enabled": False})
    refused = types("resume", run.folder)
    assert refused.returncode == ExitCode.SUBMISSION and "is not over: stage serve" in refused.stderr
    assert types("cancel", run.folder).returncode == 0
    resumed = types("resume", run.folder, "--wait", "--json")  # until only the server is left
    assert documented("resume", resumed.stdout)["state"] == "serving", resumed.stdout + resumed.stderr
    endpoint = json.loads(run.endpoint.read_text())
    assert endpoint["models"]
    assert types("cancel", run.folder).returncode == 0
    assert eventually(lambda: leftovers(run) == [], 10), leftovers(run)
