"""Validate a file's tree with a pydantic model; errors become diagnostics with place, choices and fix."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError

from trtllm_hpc.config.diagnostics import Path, nearest, shown
from trtllm_hpc.config.tree import Tree
from trtllm_hpc.config.types import PATTERNS, Section
from trtllm_hpc.errors import Diagnostic

Model = TypeVar("Model", bound=Section)

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "model_type": "a section of keys",
    "dict_type": "a section of keys",
    "list_type": "a list",
}
_RANGE = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
_SYNONYMS = {
    "tp": "tensor_parallel",
    "tp_size": "tensor_parallel",
    "pp": "pipeline_parallel",
    "pp_size": "pipeline_parallel",
    "cp": "context_parallel",
    "cp_size": "context_parallel",
    "engine_dir": "directory",
    "time": "time_limit_minutes",
    "gpus": "gpus_per_node",
    "env": "environment",
}
"""Names in other tools whose spelling is too different from the key's for a match."""
_VALUE_HINTS = {"llmapi": "write pytorch, and serve.frontend: triton to serve it with Triton"}
"""Hints for values that other tools use."""


def validate(model: type[Model], tree: Tree) -> tuple[Model | None, list[Diagnostic]]:
    """Build ``model`` from a tree; return it, or ``None`` with all errors."""
    try:
        return model.model_validate(tree.data), []
    except ValidationError as error:
        # A --set lost its quotes in the shell: where the key wants text, retry with what was typed.
        for path in (detail["loc"] for detail in error.errors() if detail["type"] == "string_type"):
            if path in tree.places and (typed := tree.places[path].typed) is not None:
                tree = tree.changed(path, typed)
    try:
        return model.model_validate(tree.data), []
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        return None, [_diagnose(model, tree, dict(detail)) for detail in details]


def _diagnose(model: type[Section], tree: Tree, detail: dict[str, Any]) -> Diagnostic:
    kind, path, context = detail["type"], detail["loc"], detail.get("ctx", {})
    if kind == "missing":
        advice = f"add the line '{path[-1]}: ...'"
        return tree.diagnostic("missing", path, "is missing and has no default", hint=advice)
    if path[-1:] == ("[key]",) and kind != "extra_forbidden":
        path = path[:-1]  # pydantic's mark for a wrong key of a mapping
    value = tree.at(*tree.nearest(path))
    code, choices = "bad-value", tuple[str, ...]()
    hint: str | None = None
    if kind == "extra_forbidden":
        code, message = "unknown-key", "is not a known key"
        section, key = section_at(model, path[:-1]), str(path[-1])
        choices = tuple(section.model_fields) if section is not None else ()
        wanted = _SYNONYMS.get(key, key)
        guess = wanted if wanted in choices else nearest(key, choices)
        if guess is None:  # the key of another section with this name, the least nested one
            paths = sorted(all_keys(model), key=lambda path: path.count("."), reverse=True)
            elsewhere = {path.rpartition(".")[2]: path for path in paths}
            near = wanted if wanted in elsewhere else nearest(key, elsewhere, cutoff=0.85)
            guess = elsewhere.get(near or "")
        hint = f"did you mean '{guess}'?" if guess else "remove it, or use one of this section's keys"
    elif kind in _EXPECTED:
        code, hint = "wrong-type", _retyped(kind, value)
        message = f"must be {_EXPECTED[kind]}, not {_described(value)}"
    elif kind == "literal_error":
        code, message = "not-a-choice", f"{shown(value)} is not one of the choices"
        choices = _choices(model, path)
        near = nearest(str(value), choices)
        hint = _VALUE_HINTS.get(str(value)) or (f"write {near}" if near else None)
    elif kind in _RANGE or kind == "finite_number":
        bound, words = _RANGE.get(kind, ("", "a finite number"))
        limit = f"{words} {context[bound]}" if bound else words
        code, message = "out-of-range", f"must be {limit}, not {shown(value)}"
    elif kind == "string_too_long":
        code, message = "too-large", f"must be at most {context['max_length']} characters long"
    elif kind == "string_too_short":
        message, hint = "must not be empty", "write null, or leave the key out, for the default"
    elif kind == "too_short":
        message, hint = "must not be empty", "give it an entry"
    elif kind == "string_pattern_mismatch":
        message, hint = PATTERNS.get(context["pattern"], (f"must match {context['pattern']}", None))
        message += f", not {shown(value)}"
    else:
        message = detail["msg"].removeprefix("Value error, ")
    return tree.diagnostic(code, path, message, value=value, hint=hint, choices=choices)


def section_at(model: type[Section], path: Path) -> type[Section] | None:
    """Return the model of the section at ``path``; ``None`` if there is no section."""
    for part in path:
        field = model.model_fields.get(str(part))
        inner = next(_sections(field.annotation), None) if field is not None else None
        if inner is None:
            return None
        model = inner
    return model


def all_keys(model: type[Section], prefix: str = "") -> Iterator[str]:
    """Yield every key of the model and its sections, dotted."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for inner in _sections(field.annotation):
            yield from all_keys(inner, f"{prefix}{name}.")


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union, and the metadata of annotated types."""
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        for part in get_args(annotation):
            yield from _parts(part)
    else:
        yield annotation


def _sections(annotation: Any) -> Iterator[type[Section]]:
    yield from (part for part in _parts(annotation) if isinstance(part, type) and issubclass(part, Section))


def _choices(model: type[Section], path: Path) -> tuple[str, ...]:
    """Return the choices of a field, or of the entries of a mapping or list."""
    for length in range(len(path), 0, -1):
        section, name = section_at(model, path[: length - 1]), path[length - 1]
        if section is not None and name in section.model_fields:
            return tuple(_literals(section.model_fields[str(name)].annotation))
    raise AssertionError(f"no field of {model.__name__} at {path}")


def _literals(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for part in get_args(annotation):
            yield from _literals(part)


def _described(value: Any) -> str:
    if value is None:
        return "null (nothing)"
    if isinstance(value, dict):
        return "a section of keys"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f"the text {shown(value)}"
    return f"{str(value).lower() if isinstance(value, bool) else shown(value)}"


def _retyped(kind: str, value: Any) -> str | None:
    """Return the hint that writes the same value in the right type, if possible."""
    if value is None:
        return "give a value, or remove the key for the default"
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return f"write it in quotes: '{text}'"
    if not isinstance(value, str):
        return None
    if kind in ("int_type", "float_type") and re.fullmatch(r"\s*[-+]?[0-9]+(\.[0-9]+)?\s*", value):
        return f"write it without quotes: {value.strip()}"
    if kind == "bool_type" and value.lower() in ("yes", "on", "y", "no", "off", "n"):
        return f"write {'true' if value.lower() in ('yes', 'on', 'y') else 'false'}"
    if kind == "list_type" and "\n" not in value:
        return f"write it as a list of one: [{shown(value)}]"
    return None
