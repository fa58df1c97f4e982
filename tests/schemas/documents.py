"""Every file that is generated from the package's types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.schemas.inputs import cluster_schema, job_schema

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "templates" / "schemas"


def documents() -> dict[Path, str]:
    """The text of each file, by its path."""
    return {
        SCHEMAS / "job.schema.json": as_text(job_schema()),
        SCHEMAS / "cluster.schema.json": as_text(cluster_schema()),
    }


def as_text(schema: dict[str, Any]) -> str:
    """A schema as its file holds it."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
