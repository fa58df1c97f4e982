"""Write a model repository from a recipe and upstream's templates.

A placeholder outside quotes is replaced in the text, which does not parse before. A placeholder inside quotes
is replaced in the parsed message, so that commas, quotes, colons and newlines in a value have no meaning for
the text format.

Where this package is installed, Triton's schema and the protobuf library come from tritonclient
(``model_config_pb2``). In a container they may be missing or have the wrong version, so the zipapp brings
both with it, protobuf in its pure-Python form.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from trtllm_hpc.errors import Diagnostic, ExitCode, RenderError
from trtllm_hpc.paths import RunPaths, read_json, write_folder_aside
from trtllm_hpc.runtime.model_repository.recipe import ModelRecipe, RepositoryRecipe, Value

# Schema ---------------------------------------------------------------------------------------

VENDORED = "vendored"
"""Folder of the zipapp with protobuf and the schema."""

_MODULE = "model_config_pb2"


@lru_cache(maxsize=1)
def schema() -> ModuleType:
    """Return the module with ``ModelConfig``; raise ModuleNotFoundError if it cannot be found."""
    archive = next((folder for folder in Path(__file__).parents if folder.is_file()), None)
    names = []
    if archive is not None:
        with zipfile.ZipFile(archive) as zipapp:
            names = zipapp.namelist()
    if f"{VENDORED}/{_MODULE}.py" in names:
        # Forget any other package named ``google``: the compiled part of another protobuf version would
        # otherwise be combined with the zipapp's Python part.
        os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
        for name in [name for name in sys.modules if name.partition(".")[0] == "google"]:
            del sys.modules[name]
        sys.path.insert(0, f"{archive}/{VENDORED}")
        importlib.invalidate_caches()
        return importlib.import_module(_MODULE)
    # Load the module from its file: importing tritonclient.grpc would import grpc, which is slow and not
    # needed.
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


def text_format() -> Any:
    """Return protobuf's module for the text format, of the version that fits ``schema()``."""
    schema()
    return importlib.import_module("google.protobuf.text_format")


def json_format() -> Any:
    """Return protobuf's module for messages as plain data, of the version that fits ``schema()``."""
    schema()
    return importlib.import_module("google.protobuf.json_format")


# Template -------------------------------------------------------------------------------------

Values = Mapping[str, Value | None]


def in_model(model: str, message: str, hint: str, line: int | None = None) -> Diagnostic:
    """Return a diagnostic for something that Triton would refuse; ``line`` is a line of ``config.pbtxt``."""
    file = model if line is None else f"{model}/config.pbtxt"
    return Diagnostic("repository", message, file, line=line, hint=hint)


class RepositoryInvalid(RenderError):
    """The repository cannot be made from these templates and values."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        count = len(self.diagnostics)
        heading = f"The model repository has {count} problem{'s' if count != 1 else ''}."
        super().__init__("\n".join([heading, *map(str, self.diagnostics)]))


# Strings and comments come first: placeholders in them are not structure. A string ends with its line at
# most.
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
    """A placeholder and its position in the text."""

    name: str
    line: int
    structural: bool
    """Whether the placeholder is outside quotes, where it prevents parsing."""
    start: int
    end: int
    """Offset behind the placeholder's last character."""
    field: str
    """The field that the placeholder is the value of, e.g. ``data_type``."""


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
    """Return a value as Triton's models read it from a string parameter; ``None`` becomes an empty string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def fill(text: str, values: Values, model: str) -> tuple[Any | None, list[Diagnostic]]:
    """Return the filled ``ModelConfig`` and no diagnostics, or ``None`` and all faults."""
    placeholders = tuple(find_placeholders(text))
    problems = [problem for placeholder in placeholders for problem in _faults(placeholder, values, model)]
    if problems:
        return None, problems
    for placeholder in reversed(placeholders):  # from the end, so that the offsets before stay right
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
    for key, parameter in list(message.parameters.items()):  # drop parameters without a value
        if any(values[name] is None for name in _PLACEHOLDER.findall(parameter.string_value)):
            del message.parameters[key]
    record = json_format().MessageToDict(message, preserving_proto_field_name=True)
    return json_format().ParseDict(_filled(record, values), schema().ModelConfig()), []


def _faults(placeholder: TemplatePlaceholder, values: Values, model: str) -> Iterator[Diagnostic]:
    """Yield the faults of a placeholder and its value."""
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


def _filled(part: Any, values: Values) -> Any:
    if isinstance(part, dict):
        return {name: _filled(value, values) for name, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values) for value in part]
    if isinstance(part, str):
        # A single pass, so that a placeholder in a value is not replaced.
        return _PLACEHOLDER.sub(lambda match: as_text(values[match[1]]), part)
    return part


def edit(message: Any, recipe: ModelRecipe) -> None:
    """Apply the recipe's edits, as upstream's users do with ``sed``, and set the model's name."""
    message.name = recipe.name
    edits = recipe.edits
    if edits.backend is not None:
        message.backend = edits.backend
    batching = message.dynamic_batching
    if edits.max_batch_size is not None:
        before, message.max_batch_size = message.max_batch_size, edits.max_batch_size
        # Triton refuses a preferred size above the maximum. A preferred size equal to the old maximum becomes
        # the new one.
        most, preferred = edits.max_batch_size, batching.preferred_batch_size
        if preferred:
            preferred[:] = sorted({most if size == before else min(size, most) for size in preferred})
    if edits.max_queue_delay_microseconds is not None:
        batching.max_queue_delay_microseconds = edits.max_queue_delay_microseconds
    if edits.max_queue_size is not None:
        batching.default_queue_policy.max_queue_size = edits.max_queue_size
    if edits.preserve_ordering:
        batching.preserve_ordering = True
    if edits.decoupled is not None and message.model_transaction_policy.decoupled != edits.decoupled:
        message.model_transaction_policy.decoupled = edits.decoupled
    if edits.instances is not None:
        if not message.instance_group:
            # KIND_CPU as in upstream's templates: the backend itself chooses the GPUs.
            message.instance_group.add(kind=schema().ModelInstanceGroup.KIND_CPU)
        for group in message.instance_group:
            group.count = edits.instances
    for step in message.ensemble_scheduling.step:
        step.model_name = edits.models.get(step.model_name, step.model_name)


# Repository -----------------------------------------------------------------------------------

CONFIG = "config.pbtxt"

_BELOW = ("", "all_models", "triton_backend/all_models", "tensorrt_llm/triton_backend/all_models")
"""Folders of the templates: in an image's ``all_models`` itself, in a checkout of tensorrtllm_backend up to
0.19, in a checkout of TensorRT-LLM since, and in tensorrtllm_backend with TensorRT-LLM as a submodule."""

_LEFT_OUT = ("__pycache__", ".tmp", ".gitkeep", CONFIG)


def make_repository(paths: RunPaths, all_models: Path) -> int:
    """``runtime repository``: fill, check and write the run's repository; return the exit code."""
    try:
        record = read_json(paths.repository_recipe)
        recipe = None if record is None else RepositoryRecipe.from_json(record)
    except (ValueError, KeyError, TypeError) as error:
        return _refuse(f"{paths.repository_recipe} cannot be read ({error}); render the job again.")
    if recipe is None:
        return _refuse(f"{paths.repository_recipe} is missing; render the job again.")
    try:
        models = render_models(recipe, all_models)
        write_repository(models, paths.repository)
    except RepositoryInvalid as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        return _refuse(f"{error}, and the zipapp carries no protobuf; render the job again.")
    except OSError as error:
        return _refuse(f"{error.filename or paths.repository}: {error.strerror or error}.")
    print(f"repository: {', '.join(models)} from {all_models}")
    return ExitCode.OK


def _refuse(sentence: str) -> int:
    print(f"error: repository: {sentence}", file=sys.stderr)
    return ExitCode.START


MODEL_NAMES = (
    "tensorrt_llm_model_name",
    "tensorrt_llm_draft_model_name",
    "multimodal_encoders_name",
    "context_model_name",
    "generation_model_name",
)
"""Parameters of upstream's Python models that name another model."""


ModelFiles = Mapping[str, str | Path]
"""The files of one model, by path in its folder: a text, or the path of a template file to copy."""


def render_models(recipe: RepositoryRecipe, folder: Path) -> dict[str, ModelFiles]:
    """Return the files of every model by the model's name, checked one by one and together.

    ``folder`` is upstream's ``all_models``, with or without its groups, or a checkout that contains it.
    Raises RepositoryInvalid with all faults.
    """
    candidates = (
        candidate
        for candidate in map(folder.joinpath, _BELOW)
        if any(candidate.glob(f"*/*/{CONFIG}")) or any(candidate.glob(f"*/{CONFIG}"))
    )
    if (all_models := next(candidates, None)) is None:
        why = f"{folder} has no model templates (no <group>/<model>/{CONFIG})."
        raise RepositoryInvalid([in_model("all models", why, "set container.all_models in the profile")])
    messages: dict[str, Any] = {}
    files: dict[str, ModelFiles] = {}
    problems: list[Diagnostic] = []
    for model in recipe.models:
        # <group>/<model>, or <model> in a folder without groups.
        places = (all_models / model.template, all_models / model.template.rpartition("/")[2])
        source = next((place for place in places if (place / CONFIG).is_file()), None)
        if source is None:
            known = sorted(
                path.parent.relative_to(all_models).as_posix() for path in all_models.rglob(CONFIG)
            )
            why = f"{all_models} has no template {model.template}; it has {', '.join(known)}."
            hint = "take the image of the job file's release, or set container.all_models"
            problems.append(in_model(model.name, why, hint))
            continue
        text = (source / CONFIG).read_text(encoding="utf-8", errors="replace")
        message, wrong = fill(text, model.values, model.name)
        problems += wrong
        present = {placeholder.name for placeholder in find_placeholders(text)}
        for name in sorted(set(model.asked) - present):
            why = f"its template has no ${{{name}}}, which the job file sets."
            problems.append(in_model(model.name, why, f"remove repository.parameters.{model.name}.{name}"))
        if message is not None:
            edit(message, model)
            messages[model.name] = message
            # Do not copy engines: upstream's oldest workflow puts them into tensorrt_llm/1, but the
            # configuration names the engine's folder.
            others = {
                path.relative_to(source).as_posix(): path
                for path in sorted(source.rglob("*"))
                if path.is_file()
                and path.suffix != ".engine"
                and not set(path.relative_to(source).parts) & set(_LEFT_OUT)
            }
            files[model.name] = {**others, **model.files}
    if problems := problems or list(_misfits(messages, files)):
        raise RepositoryInvalid(problems)
    for model in recipe.models:
        made_by = f"# Made by trtllm-hpc for TensorRT-LLM {recipe.release} from the image's all_models"
        config = text_format().MessageToString(messages[model.name], as_utf8=True)
        files[model.name] = {CONFIG: f"{made_by}/{model.template}/{CONFIG}.\n{config}", **files[model.name]}
    return files


def _misfits(messages: Mapping[str, Any], files: Mapping[str, Collection[str]]) -> Iterator[Diagnostic]:
    """Yield files and models that a model names and the repository lacks, and batch sizes that do not fit.

    ``messages`` and ``files`` (relative paths) are by model.
    """
    for name, message in messages.items():
        file = message.default_model_filename or "model.py"
        if message.backend == "python" and f"1/{file}" not in files[name]:
            hint = "set engine.backend: tensorrtllm, or take a release whose template has the file"
            yield in_model(name, f"has the backend python, but its template lacks 1/{file}.", hint)
        named = {f"its parameter {key}": message.parameters[key].string_value for key in MODEL_NAMES
                 if key in message.parameters}  # fmt: skip
        named |= {f"its step {step.model_name}": step.model_name for step in message.ensemble_scheduling.step}
        for what, other in named.items():
            if other not in messages:
                known = ", ".join(sorted(set(messages) - {name})) or "no other"
                text = f"{what} names the model {other!r}, and the repository has {known}."
                yield in_model(name, text, "name one of those, or add the model")
        for step in message.ensemble_scheduling.step:
            size = messages[step.model_name].max_batch_size if step.model_name in messages else None
            if size is not None and size < message.max_batch_size:
                text = f"takes batches of {message.max_batch_size}, but {step.model_name} only of {size}."
                yield in_model(name, text, "set repository.triton_max_batch_size for all of them")


def write_repository(models: Mapping[str, ModelFiles], folder: Path) -> None:
    """Write the repository atomically: ``folder`` has either its old or its complete new content."""
    with write_folder_aside(folder) as aside:
        for name, files in models.items():
            # Triton requires a version folder, even an empty one.
            (aside / name / "1").mkdir(parents=True)
            for path, content in files.items():
                target = aside / name / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read_bytes() if isinstance(content, Path) else content.encode())
            if not any((aside / name / "1").iterdir()):
                (aside / name / "1" / ".keep").touch()
