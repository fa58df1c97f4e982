"""The shipped JSON Schemas: of job files, of cluster profiles, and of what commands print with ``--json``."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

_ENDING = ".schema.json"


def schemas() -> dict[str, Path]:
    """Return every schema by name: ``job``, ``cluster``, and a command's words with hyphens."""
    folder = Path(str(resources.files("trtllm_hpc.templates"))) / "schemas"
    return {path.name.removesuffix(_ENDING): path for path in sorted(folder.glob(f"*{_ENDING}"))}
