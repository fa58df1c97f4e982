"""Write every file that is generated from the package's types and data, for ``git diff`` to review.

``python -m tools.generate``, a part of ``make golden``, writes the JSON Schemas, ``docs/reference/json.md``,
``docs/reference/job-file.md``, ``docs/reference/causes.md`` and ``docs/reference/builds.md``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools import builds_page, causes_page, job_file_page, json_page
from tools.file_schemas import cluster_schema, job_schema
from tools.outputs import OUTPUTS, output_schema

ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / "templates" / "schemas"


def documents() -> dict[Path, str]:
    """Return the text of each file, by its path; without the page of builds, which takes a minute."""
    schemas = {"job": job_schema(), "cluster": cluster_schema()}
    schemas |= {command.replace(" ", "-"): output_schema(command) for command in OUTPUTS}
    texts = {SCHEMAS / f"{name}.schema.json": _as_text(schema) for name, schema in schemas.items()}
    pages = {json_page.PAGE: json_page.page(), job_file_page.PAGE: job_file_page.page()}
    return {**texts, **pages, ROOT / "docs" / "reference" / "causes.md": causes_page.page()}


def _as_text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path, text in (documents() | {builds_page.PAGE: builds_page.page()}).items():
        path.write_text(text, encoding="utf-8")
