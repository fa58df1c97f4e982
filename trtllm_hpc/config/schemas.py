"""The shipped JSON Schemas, of files and of what ``--json`` prints."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

NAMES = ("job", "cluster", "lock", "output")


def schema_file(name: str) -> Path:
    """Return the shipped file ``NAME.schema.json``."""
    return Path(str(resources.files("trtllm_hpc.templates"))) / "schemas" / f"{name}.schema.json"


def schema(name: str) -> dict[str, Any]:
    """Return a schema of :data:`NAMES` that needs no other file."""
    text = schema_file(name).read_text(encoding="utf-8")
    if name != "cluster":
        return dict(json.loads(text))
    whole = json.loads(text.replace("job.schema.json#", "#"))  # its job_defaults are a job file's
    return {**whole, "$defs": {**whole["$defs"], **schema("job")["$defs"]}}
