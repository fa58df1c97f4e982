"""JSON Schemas of the package's types, with the docstrings of the fields as descriptions."""

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
        type_: an annotation that pydantic supports.
        mode: ``validation`` for files that are read, ``serialization`` for printed output.
        title: of the schema.
    """
    schema = TypeAdapter(type_).json_schema(schema_generator=_Described, mode=mode)
    return {"$schema": DIALECT, "title": title, **schema}


def schemas_of(types: Mapping[str, Any]) -> tuple[dict[str, JsonSchemaValue], JsonSchemaValue]:
    """Return the schema of each printed type by its name, and the definitions that the schemas share."""
    inputs = [(name, "serialization", TypeAdapter(type_)) for name, type_ in types.items()]
    schemas, shared = TypeAdapter.json_schemas(inputs, schema_generator=_Described)  # type: ignore[arg-type]
    return {name: schemas[name, "serialization"] for name in types}, shared["$defs"]


def plain_text(docstring: str) -> str:
    """Return a docstring as one line of Markdown, with JSON's ``null``, ``true`` and ``false``."""
    text = " ".join(docstring.split())
    text = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", text)
    text = (
        text.replace("``None``", "``null``").replace("``True``", "``true``").replace("``False``", "``false``")
    )
    return text.replace("``", "`")


@cache
def field_docs(owner: type) -> Mapping[str, str]:
    """Return the docstring below each field of a class and of its base classes."""
    docs: dict[str, str] = {}
    for base in getattr(owner, "__orig_bases__", owner.__bases__):
        if isinstance(base, type) and base.__module__.startswith("trtllm_hpc"):
            docs |= field_docs(base)
    return docs | _own_docs(owner)


def _own_docs(owner: type) -> dict[str, str]:
    module = inspect.getmodule(owner)
    assert module is not None
    body = ast.parse(inspect.getsource(module)).body
    for name in owner.__qualname__.split("."):
        [definition] = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
        body = definition.body
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
        is_time = field.get("pattern") == TIME
        types = ["time" if name == "string" and is_time else name for name in field["type"]]
        return " or ".join(type_text({**field, "type": name}, root) for name in types)
    if field.get("type") == "array":
        return f"list of {type_text(field['items'], root)}" if field.get("items") else "list"
    inner = next(iter(field.get("patternProperties", {}).values()), field.get("additionalProperties"))
    if isinstance(inner, dict) and inner:
        return f"map of {type_text(inner, root)}"
    return str(field.get("type", "any"))


def resolved(node: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the target of a ``$ref`` in a schema; return any other node unchanged."""
    if "$ref" not in node:
        return node
    target: Mapping[str, Any] = root["$defs"][node["$ref"].rpartition("/")[2]]
    return target


class _Described(GenerateJsonSchema):
    """pydantic's generator with descriptions and closed objects, and without generated titles."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        owner, described = schema["cls"], super().dataclass_schema(schema)
        for name in getattr(owner, "PRINTED", ()):
            described["properties"][name] = self._property_schema(getattr(owner, name))
        return _described(described, owner)

    def _property_schema(self, printed: property) -> JsonSchemaValue:
        """Return the schema of a property. The property's type must not need a shared definition."""
        assert printed.fget is not None
        returned = get_type_hints(printed.fget)["return"]
        inner = self.generate_inner(TypeAdapter(returned).core_schema)
        return {"description": plain_text(printed.__doc__ or ""), **inner}

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _described(super().typed_dict_schema(schema), schema["cls"])

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        # A list of two types, if possible: editors explain it better than a choice of schemas (anyOf).
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
        # A pattern added to a validated string is a separate step, which pydantic would leave out.
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
        # Output contains every field, even a field with a default.
        result["required"] = list(properties)
        properties = {
            name: {key: value for key, value in field.items() if key != "default"}
            for name, field in properties.items()
        }
    return {**result, "properties": properties, "additionalProperties": False}
