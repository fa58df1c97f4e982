"""``docs/json.md``: each command's output as an example and a table of its fields, from the schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.schemas.generator import schema_of
from tests.schemas.outputs import OUTPUTS, Output
from trtllm_hpc.cli.options import json_text

_WIDTH = 110
_OF_A_MAP = "The finished `config.pbtxt` of each model, by its name."
"""``templates show`` prints a map, which has no docstring of its own."""
_HEAD = """\
# JSON output

Commands that print a table print JSON with `--json`. Each has a JSON Schema (draft 2020-12): `trtllm-hpc
schema` lists them, and `trtllm-hpc schema bench compare` prints one. The schemas, and the examples and tables
below, are made of the types that the commands print (`make golden`).

Every field is always there; without a value it is `null`. In the tables `[]` is an item of a list, and `.*` a
value of a map. A later version may add fields; one that goes away, or changes its meaning, is told in the
[changelog](../CHANGELOG.md). Errors are text on standard error, with `--json` too; the [exit
code](../README.md#from-your-own-job-file) says what failed.
"""


def page() -> str:
    """The whole document."""
    seen: dict[str, str] = {}
    return _HEAD + "".join(_section(command, seen) for command in OUTPUTS)


def _section(command: str, seen: dict[str, str]) -> str:
    text = f"\n## {command}\n"
    for output in OUTPUTS[command]:
        form = f"{output.form[0].upper()}{output.form[1:]}: " if output.form else ""
        known = seen.get(repr(output.kind))
        if known is not None:
            text += f"\n{form}{'the' if form else 'The'} same as [`{known}`](#{known.replace(' ', '-')}).\n"
            continue
        seen[repr(output.kind)] = command
        text += f"\n{_described(output, form)}"
    return text


def _described(output: Output, form: str) -> str:
    schema = schema_of(output.kind, "serialization", "")
    root = schema["items"] if schema.get("type") == "array" else schema
    what = _resolved(root, schema).get("description", _OF_A_MAP)
    if root is not schema:
        what = f"A list, each item of it: {_lower(what)}"
    text = f"{form}{_lower(what) if form else what}\n"
    text += f"\n```json\n{compact(json.loads(json_text(output.example)))}\n```\n"
    rows = list(_rows(root, schema, "[]" if root is not schema else "", (root.get("$ref", ""),)))
    return text + ("\n| field | type | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n" if rows else "")


def _rows(
    node: Mapping[str, Any], root: Mapping[str, Any], path: str, inside: tuple[str, ...]
) -> Iterator[str]:
    """A row for each field of an object and of the objects in it; one in itself is not unfolded again."""
    for name, field in _resolved(node, root).get("properties", {}).items():
        place = f"{path}.{name}".lstrip(".")
        yield f"| `{place}` | {_type(field, root)} | {field.get('description', '')} |"
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
            yield f"| `{place}` | object | {_resolved(choice, root).get('description', '')} |"
        yield from _rows(choice, root, place, (*inside, target))
    for choice in field.get("anyOf", ()):
        if "$ref" not in choice:
            yield from _inner_rows(choice, root, place, inside)


def _type(field: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(choice, root) for choice in field["anyOf"]))
    field = _resolved(field, root)
    if "enum" in field or "const" in field:
        choices = field.get("enum", [field.get("const")])
        return ", ".join(f"`{json.dumps(choice)}`" for choice in choices)
    if isinstance(field.get("type"), list):
        return " or ".join(_type({**field, "type": name}, root) for name in field["type"])
    if field.get("type") == "array":
        return f"list of {_type(field['items'], root)}" if field.get("items") else "list"
    inner = field.get("additionalProperties")
    if isinstance(inner, dict) and inner:
        return f"map of {_type(inner, root)}"
    return str(field.get("type", "any"))


def _lower(sentence: str) -> str:
    return f"{sentence[0].lower()}{sentence[1:]}"


def _resolved(node: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in node:
        return node
    target: Mapping[str, Any] = root["$defs"][node["$ref"].rpartition("/")[2]]
    return target


def compact(value: Any, indent: int = 0) -> str:
    """JSON with each value on one line that fits there."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + len(line) <= _WIDTH or not isinstance(value, (dict, list)):
        return line
    inner = " " * (indent + 2)
    if isinstance(value, list):
        items = [compact(item, indent + 2) for item in value]
    else:
        items = [f"{json.dumps(name)}: {compact(item, indent + 2)}" for name, item in value.items()]
    opening, closing = "[]" if isinstance(value, list) else "{}"
    return f"{opening}\n" + ",\n".join(f"{inner}{item}" for item in items) + f"\n{' ' * indent}{closing}"
