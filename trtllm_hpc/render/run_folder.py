"""Write a run folder: everything that a submission needs."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
import zipfile
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata, resources
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_hpc import __version__
from trtllm_hpc.config.cluster import SECRETS
from trtllm_hpc.config.dump import cluster_yaml, job_yaml
from trtllm_hpc.config.hub import record_of
from trtllm_hpc.errors import RenderError
from trtllm_hpc.paths import RunPaths, write_aside, write_json, write_text
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.render.scripts import build_recipe, render_configurations, render_repository, render_scripts
from trtllm_hpc.runtime.engine_cache.cache import link
from trtllm_hpc.runtime.lock import Lock, fingerprint, image_facts
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.runtime.model_repository.writer import VENDORED

if TYPE_CHECKING:
    from importlib.abc import Traversable

_ZIPPED = ("__init__.py", "errors.py", "paths.py")
"""Modules beside ``runtime/`` that travel with it; standard library only, like it."""

_NOT_NEEDED = ("compiler", "pyext", "testdata", "util", "__pycache__")
"""Parts of protobuf for its own compiler, its compiled forms and its tests."""

_ENVIRONMENTS = ("environment", "env_overrides")
"""Keys whose mappings are environment variables."""

_REMEDIES = {
    errno.EFBIG: "ulimit -f unlimited, then the same command again: your shell limits the size of files",
    errno.ENOSPC: "free space there (df -h; df -i for the number of files), or name a folder with --runs",
    errno.EDQUOT: "remove files there: your quota is used up; or name another folder with --runs",
}


def new_run_folder(runs_folder: Path, name: str) -> RunPaths:
    """Paths of a run folder that does not exist yet: job name, time and four random digits."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return RunPaths(runs_folder / f"{name}-{stamp}-{secrets.token_hex(2)}")


def write_run(plan: Plan, side_outputs: Mapping[str, Path] | None = None) -> RunPaths:
    """Write the run folder of a plan, whole or not at all.

    ``side_outputs`` is what else was found in the cache with the engine, by the step that made it. Raises
    RenderError if a value fits no script, or the folder cannot be made.
    """
    paths = RunPaths(plan.run_folder)
    os.umask(mask := os.umask(0o077))
    if mask & 0o700:
        message = f"The umask of your shell, {mask:04o}, keeps you from your own new files."
        raise RenderError(message, hint="umask 077, then the same command again")
    # All text first: a value that cannot be rendered must not leave a partial folder.
    scripts, configurations = render_scripts(plan), render_configurations(plan)
    repository = render_repository(plan)
    recipe = None if plan.stage("build") is None else build_recipe(plan)
    try:
        paths.make_folders()
        for name, text in scripts.items():
            write_text(paths.scripts / name, text, mode=0o700)
        for name, text in repository.items():
            (paths.repository / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(paths.repository / name, text)
        if isinstance(plan.repository, RepositoryRecipe):
            write_json(paths.repository_recipe, plan.repository.as_json())
        for name, text in configurations.items():
            write_text(paths.folder / name, text)
        write_text(paths.spec, job_yaml(plan.job))
        write_text(paths.cluster, cluster_yaml(plan.cluster))
        lock_of(plan).write(paths.lock)
        write_runtime(paths, protobuf_files() if plan.fills_repository_in_job else None)
        if recipe is not None:
            recipe.write(paths.build_recipe)
        elif plan.engine_found is not None:
            link(paths.engine, Path(plan.engine_found))
            for step, output in (side_outputs or {}).items():
                link(paths.side_output(step), output)
        plan.record.write(paths)  # last: a folder with a plan is a whole run
    except FileExistsError as error:
        if not paths.folder.is_dir():  # it is a folder above that is a file
            raise cannot_write(paths.folder, error) from None
        raise RenderError(f"The run folder {paths.folder} is already there.") from None
    except OSError as error:
        shutil.rmtree(paths.folder, ignore_errors=True)
        raise cannot_write(paths.folder, error) from None
    except BaseException:  # Ctrl-C above all: a partial folder must not pass for a run
        shutil.rmtree(paths.folder, ignore_errors=True)
        raise
    return paths


def write_runtime(paths: RunPaths, further: Mapping[str, bytes] | None = None) -> None:
    """Write what :func:`runtime_zipapp` returns, executable, to its place in a run folder."""
    with write_aside(paths.runtime) as aside:
        aside.write_bytes(runtime_zipapp(further))
        aside.chmod(0o700)


def lock_of(plan: Plan) -> Lock:
    """Return the lock of a plan, before its run."""
    job, cluster = plan.job.model_dump(), plan.cluster.model_dump()
    del cluster["job_defaults"]  # they are in the job
    left_out = [*_without_secrets(job, ""), *_without_secrets(cluster, "cluster.")]
    container, folder = plan.cluster.container, plan.job.model.path
    hub_model = record_of(folder)
    is_partial = folder is not None and hub_model is not None and bool(hub_model.missing(Path(folder)))
    return Lock(
        version=__version__,
        job=job,
        cluster=cluster,
        left_out=left_out,
        release=plan.release,
        image=None if container.runtime == "none" or not container.image else image_facts(container.image),
        checkpoint=None if is_partial else fingerprint(folder),
    )


def _without_secrets(section: dict[str, Any], prefix: str, *, are_variables: bool = False) -> Iterator[str]:
    """Take variables with the names of secrets, and lists that set such variables, out; yield their keys."""
    for key, value in [*section.items()]:
        words = value if isinstance(value, list) else ()
        assigned = [name for word in words for name in re.findall(r"(\w+)=", str(word))]
        names = [*assigned, *([key] if are_variables else [])]
        if any(SECRETS.fullmatch(name) or name.upper().endswith("_KEY") for name in names):
            section[key] = type(value)()  # keeps the place of the key
            yield f"{prefix}{key}"
        elif isinstance(value, dict):
            yield from _without_secrets(value, f"{prefix}{key}.", are_variables=key in _ENVIRONMENTS)


def cannot_write(folder: Path, error: OSError) -> RenderError:
    """Return the error that a run's or a sweep's folder cannot be written, with what helps."""
    hint = _REMEDIES.get(error.errno or 0, "choose a folder you may write to with --runs")
    return RenderError(f"The run folder {folder} cannot be written: {error.strerror}.", hint=hint)


def runtime_zipapp(further: Mapping[str, bytes] | None = None) -> bytes:
    """The runtime and ``further`` files as one executable zip; the same bytes for the same code."""
    package = resources.files("trtllm_hpc")
    files = {f"trtllm_hpc/{name}": package.joinpath(name).read_bytes() for name in _ZIPPED}
    files |= dict(_sources(package.joinpath("runtime"), "trtllm_hpc/runtime"))
    files |= further or {}
    files["__main__.py"] = b"import sys\n\nfrom trtllm_hpc.runtime.__main__ import main\n\nsys.exit(main())\n"
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            # A fixed date, so that the bytes depend on the code alone. The fastest compression takes half
            # the time of the default, and a fifth more space.
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, compresslevel=1)
    return b"#!/usr/bin/env python3\n" + buffer.getvalue()


def _sources(
    folder: Traversable, name: str, skipped: Collection[str] = ("__pycache__",)
) -> Iterator[tuple[str, bytes]]:
    """Yield every Python file, and JSON beside them, below a package's folder, by its name in the zip."""
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir() and item.name not in skipped:
            yield from _sources(item, f"{name}/{item.name}", skipped)
        elif item.name.endswith((".py", ".json")):
            yield f"{name}/{item.name}", item.read_bytes()


def protobuf_files() -> dict[str, bytes]:
    """protobuf in pure Python and Triton's schema, by their names in the zipapp.

    For ``runtime_zipapp`` when the job itself fills the model repository. The
    two are those installed here, so they fit each other.
    """
    protobuf = resources.files("google.protobuf")
    files = dict(_sources(protobuf, f"{VENDORED}/google/protobuf", skipped=_NOT_NEEDED))
    # A package of its own, and not a part of whatever "google" the container has: another version's
    # compiled part would be found beside it.
    files[f"{VENDORED}/google/__init__.py"] = b""
    schema = resources.files("tritonclient").joinpath("grpc").joinpath("model_config_pb2.py")
    files[f"{VENDORED}/model_config_pb2.py"] = schema.read_bytes()
    # The licence must come with every copy.
    text = metadata.distribution("protobuf").read_text("LICENSE")
    return files | ({f"{VENDORED}/google/protobuf/LICENSE": text.encode()} if text else {})
