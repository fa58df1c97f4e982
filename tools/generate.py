"""Write every file that is generated from the package's types and data; review the change with ``git diff``.

``python -m tools.generate``, which is part of ``make golden``, writes the JSON Schemas, five pages of
``docs/reference`` (causes, command line, job file, profile, recipes) and ``docs/llms.txt``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools import (
    causes_page,
    cli_page,
    job_file_page,
    llms_page,
    profile_page,
    recipes_page,
)
from tools.file_schemas import cluster_schema, job_schema
from tools.outputs import output_schema
from tools.type_schemas import schema_of
from trtllm_hpc.runtime.lock import Lock

ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / "templates" / "schemas"


def documents() -> dict[Path, str]:
    """Return the text of each generated file by its path."""
    schemas = {"job": job_schema(), "cluster": cluster_schema(), "output": output_schema()}
    schemas["lock"] = schema_of(Lock, "validation", "lock.json of a run")
    texts = {SCHEMAS / f"{name}.schema.json": _as_text(schema) for name, schema in schemas.items()}
    makers = (job_file_page, profile_page, cli_page, causes_page, recipes_page)
    pages = {maker.PAGE: maker.page() for maker in makers}
    return {**texts, **pages, llms_page.PAGE: llms_page.page(pages)}


def _as_text(schema: dict[str, Any]) -> str:
    return _laid_out(schema) + "\n"


def _laid_out(node: Any, indent: str = "") -> str:
    """Return JSON with each list of words and each short object on one line, so that diffs stay readable."""
    line = json.dumps(node, ensure_ascii=False)
    if not isinstance(node, (dict, list)) or len(indent) + len(line) <= 110 or not node:
        return line
    inner = f"{indent} "
    if isinstance(node, list):
        if not any(isinstance(value, (dict, list)) for value in node):
            return line
        return "[\n" + ",\n".join(f"{inner}{_laid_out(value, inner)}" for value in node) + f"\n{indent}]"
    fields = (f"{inner}{json.dumps(key)}: {_laid_out(value, inner)}" for key, value in node.items())
    return "{\n" + ",\n".join(fields) + f"\n{indent}}}"


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
