"""Every file that is generated from the package's types and data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.schemas.causes import page as causes_page
from tests.schemas.inputs import cluster_schema, job_schema
from tests.schemas.outputs import OUTPUTS, output_schema
from tests.schemas.page import page

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "templates" / "schemas"


def documents() -> dict[Path, str]:
    """The text of each file, by its path."""
    inputs = {"job": job_schema(), "cluster": cluster_schema()}
    outputs = {command.replace(" ", "-"): output_schema(command) for command in OUTPUTS}
    schemas = {
        SCHEMAS / f"{name}.schema.json": as_text(schema) for name, schema in (inputs | outputs).items()
    }
    docs = ROOT / "docs"
    return {**schemas, docs / "json.md": page(), docs / "causes.md": causes_page()}


def as_text(schema: dict[str, Any]) -> str:
    """A schema as its file holds it."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
