"""``runtime repository``: the model repository, made in the job from the image's templates."""

from __future__ import annotations

import sys
from pathlib import Path

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.model_repository.problems import RepositoryInvalid
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.runtime.model_repository.render import render_models, write_repository


def make_repository(paths: RunPaths, all_models: Path) -> int:
    """Fill, check and write the run's repository; returns the exit code.

    Args:
        all_models: upstream's templates, as this process sees them.
    """
    try:
        recipe = _read(paths)
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


def _read(paths: RunPaths) -> RepositoryRecipe | None:
    record = read_json(paths.repository_recipe)
    return None if record is None else RepositoryRecipe.from_json(record)


def _refuse(sentence: str) -> int:
    print(f"error: repository: {sentence}", file=sys.stderr)
    return ExitCode.START
