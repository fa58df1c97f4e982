"""A run that failed on this machine goes on in the same folder, with a real tritonserver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode

from .test_local_profile import built, leftovers, submit, types

pytestmark = pytest.mark.triton


def test_a_live_run_is_not_resumed_and_a_cancelled_one_is(tmp_path: Path) -> None:
    _, run = submit(tmp_path, engine=built(), companion={"enabled": False})
    refused = types("resume", run.folder)
    assert refused.returncode == ExitCode.SUBMISSION and "is not over: stage serve" in refused.stderr
    assert types("cancel", run.folder).returncode == 0
    resumed = types("resume", run.folder, "--wait")  # until only the server is left
    assert "serving: " in resumed.stdout, resumed.stdout + resumed.stderr
    endpoint = json.loads(run.endpoint.read_text())
    assert endpoint["models"]
    assert types("cancel", run.folder).returncode == 0
    assert eventually(lambda: leftovers(run) == [], 10), leftovers(run)
