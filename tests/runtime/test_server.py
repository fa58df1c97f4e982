"""What a rank's server finds around it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trtllm_hpc.runtime.server import find_server


def test_only_pythons_own_library_goes_before_those_of_wheels(tmp_path: Path) -> None:
    """The folder in which Python's library lies may hold the system's cuDNN, NCCL and others, too."""
    server = find_server("pytriton", tmp_path / "scratch")
    first, *rest = server.environment["LD_LIBRARY_PATH"].split(os.pathsep)
    names = [file.name for file in Path(first).iterdir()]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert [name for name in names if not name.startswith(f"libpython{version}")] == []
    assert rest == os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)[: len(rest)]
