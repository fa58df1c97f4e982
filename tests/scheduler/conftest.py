from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scheduler.fake_slurm import FakeSlurm


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlurm]:
    """Slurm's commands, faked, before everything else on PATH; nothing unknown may be asked of them."""
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(fake.bin), prepend=os.pathsep)
    yield fake
    assert fake.violations == []
