"""Template text and values to a parsed ``ModelConfig``.

What stands outside quotes is filled in the text, since nothing parses before.
What stands inside is filled on the parsed message, so that no comma, quote,
colon or newline in a value can mean anything to the text format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.runtime.model_repository.lexer import NAME, PLACEHOLDER, Found, find_placeholders
from trtllm_hpc.runtime.model_repository.problems import in_model
from trtllm_hpc.runtime.model_repository.recipe import Value
from trtllm_hpc.runtime.model_repository.schema import schema, text_format

Values = Mapping[str, Value | None]


def as_text(value: Value) -> str:
    """A value as Triton's models read it from a string parameter."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def fill(text: str, values: Values, model: str) -> tuple[Any | None, list[Diagnostic]]:
    """The filled ``ModelConfig``, or ``None`` with all that is wrong."""
    found = find_placeholders(text)
    problems = [problem for place in found for problem in _missing(place, values, model)]
    if problems:
        return None, problems
    message = schema().ModelConfig()
    try:
        text_format().Parse(_fill_structure(text, found, values), message)
    except text_format().ParseError as error:
        line = error.GetLine()
        return None, [
            in_model(
                model,
                f"is no model configuration of Triton: {error}.",
                "compare the template with the image's own, or fetch it again",
                int(line) if line else None,
            )
        ]
    _fill_strings(message, values)
    return message, []


def _missing(place: Found, values: Values, model: str) -> Iterator[Diagnostic]:
    if not NAME.match(place.name):
        message = f"{place.name!r} ({place.field}) is no placeholder that can be filled."
        yield in_model(model, message, "write it as ${name}", place.line)
        return
    hint = f"set repository.parameters.{model}.{place.name}"
    if place.name not in values:
        message = f"nothing says what ${{{place.name}}} ({place.field}) is."
        yield in_model(model, message, hint if place.structural else f"{hint}, or null", place.line)
        return
    value = values[place.name]
    if value is None and (place.structural or place.field != "string_value"):
        message = f"${{{place.name}}} ({place.field}) has no value, and Triton loads no model without."
        yield in_model(model, message, hint, place.line)
    elif isinstance(value, str):
        yield from _unfit(place, value, model)


def _unfit(place: Found, value: str, model: str) -> Iterator[Diagnostic]:
    if place.structural and not NAME.match(value):
        message = f"${{{place.name}}} ({place.field}) cannot be {value!r}: it is a number, a word or true."
        yield in_model(model, message, f"set repository.parameters.{model}.{place.name}", place.line)
    elif value.startswith("${"):
        # Upstream's models take such a value for a placeholder that nobody filled, and use their default.
        message = f"the value {value!r} of ${{{place.name}}} reads like a placeholder itself."
        yield in_model(model, message, "write the value that it stands for", place.line)


def _fill_structure(text: str, found: tuple[Found, ...], values: Values) -> str:
    pieces, end = [], 0
    for place in found:
        value = values[place.name]
        if place.structural and value is not None:
            pieces += [text[end : place.start], as_text(value)]
            end = place.end
    return "".join([*pieces, text[end:]])


def _fill_strings(message: Any, values: Values) -> None:
    for key in [key for key, parameter in message.parameters.items() if _is_removed(parameter, values)]:
        del message.parameters[key]
    _fill_message(message, values)


def _is_removed(parameter: Any, values: Values) -> bool:
    names = PLACEHOLDER.findall(parameter.string_value)
    return any(values[name] is None for name in names)


def _fill_message(message: Any, values: Values) -> None:
    for field, content in message.ListFields():
        if field.type == field.TYPE_STRING:
            _fill_field(message, field, content, values)
        elif field.type == field.TYPE_MESSAGE:
            for part in _parts(field, content):
                _fill_field_or_map(part, values)


def _parts(field: Any, content: Any) -> list[Any]:
    if _is_map(field):
        value_field = field.message_type.fields_by_name["value"]
        if value_field.type == value_field.TYPE_MESSAGE:
            return list(content.values())
        return [content] if value_field.type == value_field.TYPE_STRING else []
    return list(content) if _is_repeated(field) else [content]


def _fill_field_or_map(part: Any, values: Values) -> None:
    if hasattr(part, "ListFields"):
        _fill_message(part, values)
        return
    for key, text in list(part.items()):
        part[key] = _filled(text, values)


def _fill_field(message: Any, field: Any, content: Any, values: Values) -> None:
    if _is_repeated(field):
        content[:] = [_filled(text, values) for text in content]
    else:
        setattr(message, field.name, _filled(content, values))


def _filled(text: str, values: Values) -> str:
    # One pass: what a value holds is never looked at again.
    return PLACEHOLDER.sub(lambda match: _text_of(values[match[1]]), text)


def _text_of(value: Value | None) -> str:
    return "" if value is None else as_text(value)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_repeated(field: Any) -> bool:
    # `label` is deprecated in the newest releases, which have `is_repeated` instead.
    repeated = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if repeated is None else repeated)
