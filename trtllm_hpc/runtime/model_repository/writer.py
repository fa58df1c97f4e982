"""A recipe and upstream's templates to a finished model repository on the disk."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import Diagnostic, ExitCode
from trtllm_hpc.paths import RunPaths, read_json, write_folder_aside
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.runtime.model_repository.template import (
    RepositoryInvalid,
    edit,
    fill,
    find_placeholders,
    in_model,
    text_format,
)

CONFIG = "config.pbtxt"

_BELOW = ("", "all_models", "triton_backend/all_models", "tensorrt_llm/triton_backend/all_models")
"""Folder of the templates in an image's ``all_models`` itself; in a checkout of tensorrtllm_backend up to
0.19; in one of TensorRT-LLM since; and in that as the former's submodule."""

_LEFT_OUT = ("__pycache__", ".tmp", ".gitkeep", CONFIG)


def make_repository(paths: RunPaths, all_models: Path) -> int:
    """``runtime repository``: fill, check and write the run's repository; returns the exit code."""
    try:
        record = read_json(paths.repository_recipe)
        recipe = None if record is None else RepositoryRecipe.from_json(record)
    except (ValueError, KeyError, TypeError) as error:
        return _refuse(f"{paths.repository_recipe} cannot be read ({error}); render the job again.")
    if recipe is None:
        return _refuse(f"{paths.repository_recipe} is not there; render the job again.")
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


def find_all_models(folder: Path) -> Path | None:
    """Return the folder of templates in ``folder``: with upstream's groups, or with the models themselves."""
    for below in _BELOW:
        candidate = folder / below if below else folder
        if any(candidate.glob(f"*/*/{CONFIG}")) or any(candidate.glob(f"*/{CONFIG}")):
            return candidate
    return None


def template_folder(all_models: Path, template: str) -> Path | None:
    """Return the folder of the template ``<group>/<model>``, or of ``<model>`` where there are no groups."""
    for candidate in (all_models / template, all_models / template.rpartition("/")[2]):
        if (candidate / CONFIG).is_file():
            return candidate
    return None


def template_files(folder: Path) -> dict[str, Path]:
    """Return the files that a model needs besides its configuration, by relative path.

    Engines stay where they are: upstream's oldest workflow copies them into
    ``tensorrt_llm/1``, and the configuration names their folder anyway.
    """
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.suffix != ".engine"
        and not set(path.relative_to(folder).parts) & set(_LEFT_OUT)
    }


MODEL_NAMES = (
    "tensorrt_llm_model_name",
    "tensorrt_llm_draft_model_name",
    "multimodal_encoders_name",
    "context_model_name",
    "generation_model_name",
)
"""Parameters of upstream's Python models that name another model."""


ModelFiles = Mapping[str, str | Path]
"""The files of one model, by path in its folder: a text, or the template's file to copy."""


def render_models(recipe: RepositoryRecipe, folder: Path) -> dict[str, ModelFiles]:
    """Return every model by name, checked one by one and together.

    ``folder`` is upstream's ``all_models``, or one in which ``find_all_models`` finds it. Raises
    RepositoryInvalid with everything that is wrong.
    """
    all_models = find_all_models(folder)
    if all_models is None:
        why = f"{folder} has no model templates (no <group>/<model>/{CONFIG})."
        raise RepositoryInvalid([in_model("all models", why, "set container.all_models in the profile")])
    messages: dict[str, Any] = {}
    files: dict[str, ModelFiles] = {}
    problems: list[Diagnostic] = []
    for model in recipe.models:
        source = template_folder(all_models, model.template)
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
            files[model.name] = {**template_files(source), **model.files}
    if problems := problems or list(_misfits(messages, files)):
        raise RepositoryInvalid(problems)
    for model in recipe.models:
        made_by = f"# Made by trtllm-hpc for TensorRT-LLM {recipe.release} from the image's all_models"
        config = text_format().MessageToString(messages[model.name], as_utf8=True)
        files[model.name] = {CONFIG: f"{made_by}/{model.template}/{CONFIG}.\n{config}", **files[model.name]}
    return files


def _misfits(messages: Mapping[str, Any], files: Mapping[str, Collection[str]]) -> Iterator[Diagnostic]:
    """Yield the files and models that a model names and that are not there, and batches that do not fit.

    ``messages`` and ``files``, as relative paths, are by model.
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
    """Write the repository atomically: ``folder`` holds all of it, or what it held before."""
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
