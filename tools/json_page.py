"""``docs/reference/json.md``: each command's output, an example and a table of its fields, from the schemas.

The page itself keeps the examples: they are edited there, and a test holds them against the schemas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.outputs import OUTPUTS
from tools.type_schemas import schema_of
from trtllm_hpc.config.types import TIME

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "json.md"
_EXAMPLE = re.compile(r"```json\n(.*?)\n```", re.DOTALL)
_OF_A_MAP = "The finished `config.pbtxt` of each model, by its name."
"""``templates show`` prints a map, which has no docstring of its own."""
_HEAD = """\
# JSON output

Commands that print a table print JSON with `--json`. Each has a JSON Schema (draft 2020-12): `trtllm-hpc
schema` lists them, and `trtllm-hpc schema bench compare` prints one. The schemas and the tables below are
made of the types that the commands print (`make golden`).

Every field is always there; without a value it is `null`. In the tables `[]` is an item of a list, and `.*` a
value of a map. A later version may add fields; the [changelog](../../CHANGELOG.md) names each field that goes
away or changes its meaning. Errors are text on standard error, with `--json` too; the [exit
code](exit-codes.md) says what failed.
"""


def page() -> str:
    """Return the whole document."""
    kept, described = examples(), dict[str, str]()
    return _HEAD + "".join(_section(command, kept.get(command, []), described) for command in OUTPUTS)


def examples() -> dict[str, list[str]]:
    """Return the examples on the page by command: JSON, in the order of the command's forms."""
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {section.partition("\n")[0]: _EXAMPLE.findall(section) for section in sections}


def _section(command: str, kept: list[str], described: dict[str, str]) -> str:
    """Return a command's section; ``described`` has the command under which each type was described."""
    text = f"\n## {command}\n"
    blocks = iter(kept)
    for form, kind in OUTPUTS[command].items():
        label = f"{form[0].upper()}{form[1:]}: " if form else ""
        other = described.setdefault(repr(kind), command)
        if other != command:
            text += f"\n{label}{'the' if form else 'The'} same as [`{other}`](#{other.replace(' ', '-')}).\n"
        else:
            text += f"\n{_described(kind, label, next(blocks, 'null'))}"
    return text


def _described(kind: Any, label: str, example: str) -> str:
    schema = schema_of(kind, "serialization", "")
    root = schema["items"] if schema.get("type") == "array" else schema
    what = resolved(root, schema).get("description", _OF_A_MAP)
    if root is not schema:
        what = f"A list. Each item is {_lower(what)}"
    text = f"{label}{_lower(what) if label else what}\n\n```json\n{example}\n```\n"
    rows = list(_rows(root, schema, "[]" if root is not schema else "", (root.get("$ref", ""),)))
    return text + ("\n| field | type | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n" if rows else "")


def _rows(
    node: Mapping[str, Any], root: Mapping[str, Any], path: str, inside: tuple[str, ...]
) -> Iterator[str]:
    """A row for each field of an object and of the objects in it; one in itself is not unfolded again."""
    for name, field in resolved(node, root).get("properties", {}).items():
        place = f"{path}.{name}".lstrip(".")
        yield f"| `{place}` | {type_text(field, root)} | {field.get('description', '')} |"
        yield from _inner_rows(field, root, place, inside)


def _inner_rows(
    field: Mapping[str, Any], root: Mapping[str, Any], place: str, inside: tuple[str, ...]
) -> Iterator[str]:
    if "items" in field:
        yield from _inner_rows(field["items"], root, f"{place}[]", inside)
    if isinstance(field.get("additionalProperties"), dict):
        yield from _inner_rows(field["additionalProperties"], root, f"{place}.*", inside)
    objects = [choice for choice in (field, *field.get("anyOf", ())) if "$ref" in choice]
    for choice in objects:
        target = choice["$ref"]
        if target in inside:
            continue
        if len(objects) > 1:
            yield f"| `{place}` | object | {resolved(choice, root).get('description', '')} |"
        yield from _rows(choice, root, place, (*inside, target))
    for choice in field.get("anyOf", ()):
        if "$ref" not in choice:
            yield from _inner_rows(choice, root, place, inside)


def type_text(field: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """Return a field's type in words; ``root`` is the whole schema."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(type_text(choice, root) for choice in field["anyOf"]))
    field = resolved(field, root)
    if "enum" in field or "const" in field:
        choices = field.get("enum", [field.get("const")])
        return ", ".join(f"`{json.dumps(choice)}`" for choice in choices)
    if isinstance(field.get("type"), list):
        types = ["time" if it == "string" and field.get("pattern") == TIME else it for it in field["type"]]
        return " or ".join(type_text({**field, "type": name}, root) for name in types)
    if field.get("type") == "array":
        return f"list of {type_text(field['items'], root)}" if field.get("items") else "list"
    inner = next(iter(field.get("patternProperties", {}).values()), field.get("additionalProperties"))
    if isinstance(inner, dict) and inner:
        return f"map of {type_text(inner, root)}"
    return str(field.get("type", "any"))


def _lower(sentence: str) -> str:
    return f"{sentence[0].lower()}{sentence[1:]}"


def resolved(node: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a ``$ref`` in a schema points to; any other node as it is."""
    if "$ref" not in node:
        return node
    target: Mapping[str, Any] = root["$defs"][node["$ref"].rpartition("/")[2]]
    return target
