from __future__ import annotations

import shutil

import pytest

from trtllm_hpc.logs import search


@pytest.fixture(params=["ripgrep", "without ripgrep"])
def searched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Search logs with ripgrep, however small they are, or without it."""
    if request.param == "ripgrep" and shutil.which("rg") is None:
        pytest.skip("ripgrep is not installed")
    monkeypatch.setattr(search, "_BYTES_FOR_RIPGREP", 0 if request.param == "ripgrep" else 1 << 60)
    return str(request.param)
