from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.files import Folder


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    # A person's own profiles must not reach the tests.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Folder(tmp_path)
