"""A recipe and upstream's templates to a finished model repository."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.runtime.model_repository.check import check, duplicates
from trtllm_hpc.runtime.model_repository.edit import edit
from trtllm_hpc.runtime.model_repository.fill import fill
from trtllm_hpc.runtime.model_repository.lexer import find_placeholders
from trtllm_hpc.runtime.model_repository.problems import RepositoryInvalid, in_model
from trtllm_hpc.runtime.model_repository.recipe import ModelRecipe, RepositoryRecipe
from trtllm_hpc.runtime.model_repository.schema import text_format
from trtllm_hpc.runtime.model_repository.templates import (
    CONFIG,
    find_all_models,
    template_files,
    template_folder,
)


@dataclass(frozen=True)
class FinishedModel:
    """One model, ready to be written."""

    config: str
    """Text of its ``config.pbtxt``."""
    copies: Mapping[str, Path]
    """Files of the template, by path in the model's folder."""
    texts: Mapping[str, str]
    """Files of our own, likewise."""


def render_models(recipe: RepositoryRecipe, folder: Path) -> dict[str, FinishedModel]:
    """Every model by name, checked one by one and together.

    Args:
        folder: upstream's ``all_models``, or a folder in which ``find_all_models`` finds it.

    Raises:
        RepositoryInvalid: with all problems.
    """
    all_models = find_all_models(folder)
    if all_models is None:
        why = f"{folder} has no model templates (no <group>/<model>/{CONFIG})."
        raise RepositoryInvalid([in_model("all models", why, "set container.all_models in the profile")])
    problems = duplicates([model.name for model in recipe.models])
    messages: dict[str, Any] = {}
    sources: dict[str, Path] = {}
    for model in recipe.models:
        source = template_folder(all_models, model.template)
        if source is None:
            problems.append(_no_template(model, all_models))
            continue
        message, wrong = _finish(model, source)
        problems += wrong
        if message is not None:
            messages[model.name], sources[model.name] = message, source
    copies = {name: template_files(source) for name, source in sources.items()}
    texts = {model.name: model.files for model in recipe.models}
    if not problems:
        problems = check(messages, {name: frozenset((*copies[name], *texts[name])) for name in messages})
    if problems:
        raise RepositoryInvalid(problems)
    return {
        model.name: FinishedModel(
            _header(model, recipe.release)
            + text_format().MessageToString(messages[model.name], as_utf8=True),
            {path: file for path, file in copies[model.name].items() if path not in model.files},
            model.files,
        )
        for model in recipe.models
    }


def _finish(model: ModelRecipe, source: Path) -> tuple[Any | None, list[Diagnostic]]:
    try:
        text = (source / CONFIG).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return None, [in_model(model.name, f"{source / CONFIG} cannot be read: {error}.", "fetch it again")]
    message, problems = fill(text, model.values, model.name)
    there = {place.name for place in find_placeholders(text)}
    for name in sorted(set(model.asked) - there):
        why = f"its template has no ${{{name}}}, which the job file sets."
        problems.append(in_model(model.name, why, f"remove repository.parameters.{model.name}.{name}"))
    if message is not None:
        edit(message, model)
    return message, problems


def _no_template(model: ModelRecipe, all_models: Path) -> Diagnostic:
    known = sorted(path.parent.relative_to(all_models).as_posix() for path in all_models.rglob(CONFIG))
    why = f"{all_models} has no template {model.template}; it has {', '.join(known)}."
    return in_model(model.name, why, "take the image that the job file means, or set container.all_models")


def _header(model: ModelRecipe, release: str) -> str:
    name = re.sub(r"[\x00-\x1f\x7f]+", " ", model.template)
    return f"# Made by trtllm-hpc for TensorRT-LLM {release} from the image's all_models/{name}/{CONFIG}.\n"


def write_repository(models: Mapping[str, FinishedModel], folder: Path) -> None:
    """Write the repository so that ``folder`` holds all of it or what it held before."""
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, model in models.items():
            _write_model(model, aside / name)
        aside.chmod(0o700)
        _take_place(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _take_place(aside: Path, folder: Path) -> None:
    if not folder.exists():
        aside.rename(folder)
        return
    old = aside.with_name(aside.name + ".old")
    folder.rename(old)
    try:
        aside.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    shutil.rmtree(old)


def _write_model(model: FinishedModel, folder: Path) -> None:
    # Triton wants a version folder even where nothing stands in it.
    (folder / "1").mkdir(parents=True)
    for path, source in model.copies.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    for path, text in {CONFIG: model.config, **model.texts}.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    _keep_version_folder(folder / "1")


def _keep_version_folder(folder: Path) -> None:
    if not any(folder.iterdir()):
        (folder / ".keep").touch()
