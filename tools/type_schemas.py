"""JSON Schema of the package's types, described by the docstrings of their fields."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from trtllm_hpc.config.types import TIME

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(type_: Any, mode: JsonSchemaMode, title: str) -> JsonSchemaValue:
    """Return the schema of a model, a dataclass or a TypedDict.

    Args:
        type_: any annotation that pydantic knows.
        mode: ``validation`` for what is read, ``serialization`` for what is printed.
        title: what the document is called.
    """
    found = TypeAdapter(type_).json_schema(schema_generator=_Described, mode=mode)
    return {"$schema": DIALECT, "title": title, **found}


def schemas_of(types: Mapping[str, Any]) -> tuple[dict[str, JsonSchemaValue], JsonSchemaValue]:
    """Return the schema of what is printed by each name, and the definitions that they share."""
    inputs = [(name, "serialization", TypeAdapter(type_)) for name, type_ in types.items()]
    found, shared = TypeAdapter.json_schemas(inputs, schema_generator=_Described)  # type: ignore[arg-type]
    return {name: found[name, "serialization"] for name in types}, shared["$defs"]


def plain_text(docstring: str) -> str:
    """A docstring as one line of Markdown, in JSON's words."""
    text = " ".join(docstring.split())
    text = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", text)
    text = (
        text.replace("``None``", "``null``").replace("``True``", "``true``").replace("``False``", "``false``")
    )
    return text.replace("``", "`")


@cache
def field_docs(owner: type) -> Mapping[str, str]:
    """The docstring below each field of a class, its base classes' fields included."""
    found: dict[str, str] = {}
    for base in getattr(owner, "__orig_bases__", owner.__bases__):
        if isinstance(base, type) and base.__module__.startswith("trtllm_hpc"):
            found |= field_docs(base)
    return found | _own_docs(owner)


def _own_docs(owner: type) -> dict[str, str]:
    module = inspect.getmodule(owner)
    assert module is not None
    body = ast.parse(inspect.getsource(module)).body
    for name in owner.__qualname__.split("."):
        [found] = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
        body = found.body
    return {
        field.target.id: plain_text(str(text.value.value))
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


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


def resolved(node: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a ``$ref`` in a schema points to; any other node as it is."""
    if "$ref" not in node:
        return node
    target: Mapping[str, Any] = root["$defs"][node["$ref"].rpartition("/")[2]]
    return target


class _Described(GenerateJsonSchema):
    """pydantic's generator with descriptions, closed objects, and without the titles that it makes up."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        owner, found = schema["cls"], super().dataclass_schema(schema)
        for name in getattr(owner, "PRINTED", ()):
            found["properties"][name] = self._property_schema(getattr(owner, name))
        return _described(found, owner)

    def _property_schema(self, printed: property) -> JsonSchemaValue:
        """The schema of a property whose type needs no definition of its own."""
        assert printed.fget is not None
        returned = get_type_hints(printed.fget)["return"]
        inner = self.generate_inner(TypeAdapter(returned).core_schema)
        return {"description": plain_text(printed.__doc__ or ""), **inner}

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _described(super().typed_dict_schema(schema), schema["cls"])

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        # One type of two names, where that can be said: editors explain it better than a choice of schemas.
        inner = self.generate_inner(schema["schema"])
        if "type" not in inner:
            return super().nullable_schema(schema)
        types = inner["type"] if isinstance(inner["type"], list) else [inner["type"]]
        choices = [inner.pop("const")] if "const" in inner else inner.get("enum")
        return {
            **inner,
            "type": [*types, "null"],
            **({"enum": [*choices, None]} if choices is not None else {}),
        }

    def chain_schema(self, schema: core_schema.ChainSchema) -> JsonSchemaValue:
        # A pattern that is added to a checked text is a step of its own, which pydantic would leave out.
        return {name: value for step in schema["steps"] for name, value in self.generate_inner(step).items()}

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        factory: Callable[[], Any] | None = schema.get("default_factory")  # type: ignore[assignment]
        if factory is None or (isinstance(factory, type) and issubclass(factory, BaseModel)):
            return super().default_schema(schema)
        return {**self.generate_inner(schema["schema"]), "default": factory()}


def _described(schema: JsonSchemaValue, owner: type) -> JsonSchemaValue:
    docs = field_docs(owner)
    properties = {
        name: {**({"description": docs[name]} if name in docs else {}), **field}
        for name, field in schema.get("properties", {}).items()
    }
    meaning = inspect.getdoc(owner)
    result = {name: value for name, value in schema.items() if name not in ("title", "description")}
    if meaning and not meaning.startswith(f"{owner.__name__}("):
        result["description"] = plain_text(meaning.split("\n\n")[0])
    if is_dataclass(owner):
        # Every field is printed, also one with a default.
        result["required"] = list(properties)
        properties = {
            name: {key: it[key] for key in it if key != "default"} for name, it in properties.items()
        }
    return {**result, "properties": properties, "additionalProperties": False}
