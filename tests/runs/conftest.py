from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.runs.made import run_with
from tests.scheduler.conftest import fake_slurm as fake_slurm
from tests.scheduler.fake_slurm import FakeSlurm
from trtllm_hpc.paths import RunPaths

RunOf = Callable[..., RunPaths]


@pytest.fixture
def run_of(fake_slurm: FakeSlurm, tmp_path: Path) -> RunOf:
    """Make a submitted run whose three jobs are in these states; see :func:`run_with`."""
    return partial(run_with, fake_slurm, tmp_path / "run")
