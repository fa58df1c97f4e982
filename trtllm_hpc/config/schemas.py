"""The shipped JSON Schemas, of files and of what ``--json`` prints."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

_FILES = ("job", "cluster", "lock")


def schema_file(name: str) -> Path:
    """Return the shipped file ``NAME.schema.json``."""
    return Path(str(resources.files("trtllm_hpc.templates"))) / "schemas" / f"{name}.schema.json"


@cache
def _read(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(schema_file(name).read_text(encoding="utf-8"))
    return schema


def schema_names() -> list[str]:
    """Return ``job``, ``cluster``, ``lock``, and each command with ``--json`` by its words with hyphens."""
    return [*_FILES, *(words.replace(" ", "-") for words in _read("output")["commands"])]


def schema(name: str) -> dict[str, Any]:
    """Return a schema that needs no other file. Raises KeyError: unknown name."""
    if name == "cluster":  # its job_defaults are a job file's
        text = schema_file(name).read_text(encoding="utf-8").replace("job.schema.json#", "#")
        whole: dict[str, Any] = json.loads(text)
        return {**whole, "$defs": {**whole["$defs"], **_read("job")["$defs"]}}
    if name in _FILES:
        return _read(name)
    output = _read("output")
    words = {words.replace(" ", "-"): words for words in output["commands"]}[name]
    own = output["commands"][words]
    used, new = dict[str, Any](), _types_in(own)
    while new:
        used |= {type_: output["$defs"][type_] for type_ in new}
        new = {inner for type_ in new for inner in _types_in(output["$defs"][type_])} - used.keys()
    return {
        "$schema": output["$schema"],
        "title": f"trtllm-hpc {words} --json",
        **own,
        "$defs": {type_: used[type_] for type_ in sorted(used)},
    }


def _types_in(node: Any) -> set[str]:
    return set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(node)))
