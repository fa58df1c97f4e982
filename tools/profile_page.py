"""Write ``docs/reference/profile.md``: type, default and meaning of every key of the cluster profile."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.type_schemas import resolved, schema_of, type_text
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.validation.cluster_rules import managed_options

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "profile.md"
_ROOT = schema_of(ClusterProfile, "validation", "cluster profile")
Node = Mapping[str, Any]


def page() -> str:
    """Return the page as Markdown."""
    return _HEAD + "".join(_sections("", _ROOT)) + _REFUSED + "".join(_refused())


def _refused() -> Iterator[str]:
    """Yield a row for each option that ``sbatch_options`` and ``srun_options`` refuse."""
    for command in ("sbatch", "srun"):
        for row in managed_options()[command]:
            names = " ".join(f"`{name}`" for name in row.options.split())
            yield f"| {command} | {names} | {row.instead} | {row.unsaid} |\n"


def _sections(path: str, node: Node) -> Iterator[str]:
    """Yield the table of a section's keys, then the tables of its sections; each type is described once."""
    section = resolved(node, _ROOT)
    required = section.get("required", ())
    rows = [_row(key, field, key in required) for key, field in section["properties"].items()]
    title = f"## {path}\n\n{section['description']}" if path else "## Keys"
    yield f"\n{title}\n\n| key | type | default | meaning |\n|---|---|---|---|\n{''.join(rows)}"
    described = set()
    for key, field in section["properties"].items():
        reference = _section_in(field)
        if reference and reference not in described:
            described.add(reference)
            yield from _sections(f"{path}.{key}".lstrip("."), {"$ref": reference})


def _section_in(field: Node) -> str | None:
    return next((part["$ref"] for part in (field, *field.get("anyOf", ())) if "$ref" in part), None)


def _row(key: str, field: Node, is_required: bool) -> str:
    reference = _section_in(field)
    meaning = field.get("description") or (resolved(field, _ROOT).get("description", "") if reference else "")
    kind = "section" if reference else type_text(field, _ROOT)
    default = "required" if is_required else "" if reference else f"`{json.dumps(field.get('default'))}`"
    cells = (f"`{key}`", kind.replace('`"', "`").replace('"`', "`"), default, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


_HEAD = """\
# The cluster profile

A profile describes a cluster. This page lists every key. `trtllm-hpc init cluster` writes a commented profile
with values from the running Slurm; [Set up your site](../how-to/sites.md) has an example. The first line of a
profile names its JSON Schema, with which editors complete and check keys (`trtllm-hpc schema cluster` prints
the schema).

`--set cluster.KEY=VALUE` overrides a key for a run. `null` means that the key is left out. The format of a
*time* is [the job file's](job-file.md).
"""

_REFUSED = """
## Options that keys set

`sbatch_options` and `srun_options` accept every option except the options below, which the toolkit or a key
sets. `srun_options` also refuses the options listed for sbatch. The last column names what no key can set.

| command | option | instead | cannot be set, and why |
|---|---|---|---|
"""
