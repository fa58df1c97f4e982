"""One model's template to its ``ModelConfig``: placeholders found, filled, and the result edited.

A placeholder outside quotes is filled in the text, since the text does not parse before. One inside
quotes is filled in the parsed message, so that no comma, quote, colon or newline in a value can mean
anything to the text format.

Triton's own schema and the protobuf library that reads it come from where this package is installed
(tritonclient's ``model_config_pb2``). In a container they may be missing or of the wrong version: then both
come from the zipapp, in protobuf's pure-Python form.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from trtllm_hpc.errors import Diagnostic, RenderError
from trtllm_hpc.runtime.model_repository.recipe import ModelEdits, ModelRecipe, Value

# Schema ---------------------------------------------------------------------------------------

VENDORED = "vendored"
"""Folder of the zipapp with protobuf and the schema."""

_MODULE = "model_config_pb2"


@lru_cache(maxsize=1)
def schema() -> ModuleType:
    """Return the module with ``ModelConfig``."""
    archive = _archive()
    if archive is not None:
        _prefer(f"{archive}/{VENDORED}")
        return importlib.import_module(_MODULE)
    return _installed()


def text_format() -> Any:
    """Return protobuf's module for the text format, of the version that fits ``schema()``."""
    schema()
    return importlib.import_module("google.protobuf.text_format")


def json_format() -> Any:
    """Return protobuf's module for messages as plain data, likewise."""
    schema()
    return importlib.import_module("google.protobuf.json_format")


def _archive() -> Path | None:
    """Return the zipapp that this module was read from, if protobuf is in it."""
    for folder in Path(__file__).parents:
        if folder.is_file():
            with zipfile.ZipFile(folder) as archive:
                vendored = f"{VENDORED}/{_MODULE}.py" in archive.namelist()
            return folder if vendored else None
    return None


def _prefer(folder: str) -> None:
    """Import ``google`` from ``folder`` alone, whatever else this Python has under that name."""
    # The compiled part of another version would be found otherwise, beside our Python part.
    os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
    for name in [name for name in sys.modules if name.partition(".")[0] == "google"]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    importlib.invalidate_caches()


def _installed() -> ModuleType:
    # By its file: importing tritonclient.grpc costs the start of grpc, which nothing here needs.
    package = importlib.util.find_spec("tritonclient")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("there is neither tritonclient nor protobuf here")
    file = Path(package.submodule_search_locations[0]) / "grpc" / f"{_MODULE}.py"
    spec = importlib.util.spec_from_file_location(f"trtllm_hpc_{_MODULE}", file)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"tritonclient has no {file.name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Template -------------------------------------------------------------------------------------

Values = Mapping[str, Value | None]


def in_model(model: str, message: str, hint: str, line: int | None = None) -> Diagnostic:
    """Return a diagnostic about something that Triton would refuse; ``line`` is one of ``config.pbtxt``."""
    file = model if line is None else f"{model}/config.pbtxt"
    return Diagnostic("repository", message, file, line=line, hint=hint)


class RepositoryInvalid(RenderError):
    """The repository cannot be made from these templates and values."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        count = len(self.diagnostics)
        heading = f"The model repository has {count} problem{'s' if count != 1 else ''}."
        super().__init__("\n".join([heading, *map(str, self.diagnostics)]))


# Strings and comments first: their content is not structure. A string ends at its line's end at the latest.
_TOKEN = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)"""
    r"""|(?P<comment>\#[^\n]*)"""
    r"""|(?P<placeholder>\$\{[A-Za-z_]\w*\})""",
    re.VERBOSE | re.ASCII,
)
_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_]\w*)\}", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)


@dataclass(frozen=True)
class TemplatePlaceholder:
    """One placeholder and its position."""

    name: str
    line: int
    structural: bool
    """Whether it is outside quotes, where it prevents parsing."""
    start: int
    end: int
    """Half-open range in the text."""
    field: str
    """The field before it, e.g. ``data_type``."""


def find_placeholders(text: str) -> Iterator[TemplatePlaceholder]:
    """Yield every placeholder outside comments, in the order of the text."""
    for token in _TOKEN.finditer(text):
        if token["comment"] is not None:
            continue
        for match in _PLACEHOLDER.finditer(token[0]):
            start = token.start() + match.start()
            fields = re.findall(r"(\w+)\s*[:\[{]", text[max(0, start - 200) : start])
            yield TemplatePlaceholder(
                name=match[1],
                line=text.count("\n", 0, start) + 1,
                structural=token["placeholder"] is not None,
                start=start,
                end=token.start() + match.end(),
                field=fields[-1] if fields else "a value",
            )


def as_text(value: Value | None) -> str:
    """Return a value as Triton's models read it from a string parameter; nothing is an empty string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def fill(text: str, values: Values, model: str) -> tuple[Any | None, list[Diagnostic]]:
    """Return the filled ``ModelConfig``, or ``None`` with everything that is wrong."""
    found = tuple(find_placeholders(text))
    problems = [problem for placeholder in found for problem in _faults(placeholder, values, model)]
    if problems:
        return None, problems
    for placeholder in reversed(found):
        value = values[placeholder.name]
        if placeholder.structural and value is not None:
            text = text[: placeholder.start] + as_text(value) + text[placeholder.end :]
    message = schema().ModelConfig()
    try:
        text_format().Parse(text, message)
    except text_format().ParseError as error:
        line, why = error.GetLine(), f"is not a model configuration of Triton: {error}."
        hint = "compare the template with the image's own, or fetch it again"
        return None, [in_model(model, why, hint, int(line) if line else None)]
    return _fill_strings(message, values), []


def _faults(placeholder: TemplatePlaceholder, values: Values, model: str) -> Iterator[Diagnostic]:
    """Yield what is wrong with a placeholder or with its value."""
    name, line = placeholder.name, placeholder.line
    what, hint = f"${{{name}}} ({placeholder.field})", f"set repository.parameters.{model}.{name}"
    if name not in values:
        yield in_model(model, f"nothing defines {what}.", hint, line)
        return
    value = values[name]
    if value is None and (placeholder.structural or placeholder.field != "string_value"):
        message = f"{what} has no value, and Triton loads no model without one."
        yield in_model(model, message, hint, line)
    elif isinstance(value, str) and placeholder.structural and not _WORD.match(value):
        yield in_model(model, f"{what} cannot be {value!r}: it must be a number, a word or true.", hint, line)


def _fill_strings(message: Any, values: Values) -> Any:
    """Return the message with every placeholder in its strings filled; a parameter without a value goes."""
    for key, parameter in list(message.parameters.items()):
        if any(values[name] is None for name in _PLACEHOLDER.findall(parameter.string_value)):
            del message.parameters[key]
    record = json_format().MessageToDict(message, preserving_proto_field_name=True)
    return json_format().ParseDict(_filled(record, values), schema().ModelConfig())


def _filled(part: Any, values: Values) -> Any:
    if isinstance(part, dict):
        return {name: _filled(value, values) for name, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values) for value in part]
    if isinstance(part, str):
        # One pass: filled values are not searched again.
        return _PLACEHOLDER.sub(lambda match: as_text(values[match[1]]), part)
    return part


def edit(message: Any, recipe: ModelRecipe) -> None:
    """Make the recipe's changes, as upstream's users do with ``sed``, and set the model's name."""
    message.name = recipe.name
    edits = recipe.edits
    if edits.backend is not None:
        message.backend = edits.backend
    _edit_batching(message, edits)
    if edits.decoupled is not None and message.model_transaction_policy.decoupled != edits.decoupled:
        message.model_transaction_policy.decoupled = edits.decoupled
    if edits.instances is not None:
        if not message.instance_group:
            # As in upstream's templates: the backend chooses the GPUs by itself.
            message.instance_group.add(kind=schema().ModelInstanceGroup.KIND_CPU)
        for group in message.instance_group:
            group.count = edits.instances
    for step in message.ensemble_scheduling.step:
        step.model_name = edits.models.get(step.model_name, step.model_name)


def _edit_batching(message: Any, edits: ModelEdits) -> None:
    if edits.max_batch_size is not None:
        before, message.max_batch_size = message.max_batch_size, edits.max_batch_size
        preferred = message.dynamic_batching.preferred_batch_size
        # Triton refuses a preferred size above the largest. One that was the largest remains it.
        sizes = {
            edits.max_batch_size if size == before else min(size, edits.max_batch_size) for size in preferred
        }
        if preferred:
            preferred[:] = sorted(sizes)
    if edits.max_queue_delay_microseconds is not None:
        message.dynamic_batching.max_queue_delay_microseconds = edits.max_queue_delay_microseconds
    if edits.max_queue_size is not None:
        message.dynamic_batching.default_queue_policy.max_queue_size = edits.max_queue_size
    if edits.preserve_ordering:
        message.dynamic_batching.preserve_ordering = True
