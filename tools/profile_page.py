"""``docs/reference/profile.md``: every key of the cluster profile, with its type, default and meaning."""

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
    """Return the whole document."""
    return _HEAD + "".join(_sections("", _ROOT)) + _REFUSED + "".join(_refused())


def _refused() -> Iterator[str]:
    """Yield a row for each option that the lists of further options may not have."""
    for command in ("sbatch", "srun"):
        for row in managed_options()[command]:
            names = " ".join(f"`{name}`" for name in row.options.split())
            yield f"| {command} | {names} | {row.instead} | {row.unsaid} |\n"


def _sections(path: str, node: Node) -> Iterator[str]:
    """Yield the table of a section's keys, and then the sections in it; two alike are described once."""
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

A profile describes a cluster. This page has every key. `trtllm-hpc init cluster` writes a commented profile,
filled in from the live Slurm; [Set up your site](../how-to/sites.md) has an example. Its first
line names the JSON Schema with which editors complete and check keys (`trtllm-hpc schema cluster` prints it).

`--set cluster.KEY=VALUE` overrides one key for one run. `null` means left out. A *time* is written [as in the
job file](job-file.md).
"""

_REFUSED = """
## Options that keys set

`sbatch_options` and `srun_options` accept every option except those below, which the toolkit or a
key sets. `srun_options` does not accept those of sbatch either. The last column has what no key can set.

| command | option | instead | cannot be set, and why |
|---|---|---|---|
"""
