from __future__ import annotations

import shutil

import pytest


@pytest.fixture(params=["rg", "grep", "neither"])
def searched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Search logs with ripgrep, with grep, or with neither."""
    folder = tmp_path_factory.mktemp("bin")
    if request.param != "neither":
        program = shutil.which(request.param)
        if program is None:
            pytest.skip(f"{request.param} is not installed")
        (folder / request.param).symlink_to(program)
    monkeypatch.setenv("PATH", str(folder))
    return str(request.param)
