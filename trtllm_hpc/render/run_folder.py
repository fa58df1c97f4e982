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
"""Modules beside ``runtime/`` that travel into the job; standard library only."""

_NOT_NEEDED = ("compiler", "pyext", "testdata", "util", "__pycache__")
"""Parts of protobuf that are not needed: for its compiler, compiled forms and tests."""

_ENVIRONMENTS = ("environment", "env_overrides")
"""Keys whose values are mappings of environment variables."""

_REMEDIES = {
    errno.EFBIG: "ulimit -f unlimited, then the same command again: your shell limits the size of files",
    errno.ENOSPC: "free space there (df -h; df -i for the number of files), or name a folder with --runs",
    errno.EDQUOT: "remove files there: your quota is used up; or name another folder with --runs",
}


def new_run_folder(runs_folder: Path, name: str) -> RunPaths:
    """Return the paths of a new run folder, named after the job, the time and four random digits."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return RunPaths(runs_folder / f"{name}-{stamp}-{secrets.token_hex(2)}")


def write_run(plan: Plan, side_outputs: Mapping[str, Path] | None = None) -> RunPaths:
    """Write the run folder of a plan, completely or not at all.

    ``side_outputs`` are outputs of other build steps in the cache, by step. Raises RenderError if a value
    cannot be written into a script, or the folder cannot be made.
    """
    paths = RunPaths(plan.run_folder)
    os.umask(mask := os.umask(0o077))
    if mask & 0o700:
        message = f"With the umask of your shell, {mask:04o}, you cannot use your own new files."
        raise RenderError(message, hint="umask 077, then the same command again")
    # Render all text first, so that a value that cannot be rendered leaves no partial folder.
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
        plan.record.write(paths)  # last, because a folder with a plan counts as a complete run
    except FileExistsError as error:
        if not paths.folder.is_dir():  # a parent folder is a file
            raise cannot_write(paths.folder, error) from None
        raise RenderError(f"The run folder {paths.folder} is already there.") from None
    except OSError as error:
        shutil.rmtree(paths.folder, ignore_errors=True)
        raise cannot_write(paths.folder, error) from None
    except BaseException:  # Ctrl-C, too: a partial folder must not look like a run
        shutil.rmtree(paths.folder, ignore_errors=True)
        raise
    return paths


def write_runtime(paths: RunPaths, further: Mapping[str, bytes] | None = None) -> None:
    """Write the zipapp with the runtime and ``further`` files into a run folder, executable."""
    with write_aside(paths.runtime) as aside:
        aside.write_bytes(runtime_zipapp(further))
        aside.chmod(0o700)


def lock_of(plan: Plan) -> Lock:
    """Return the lock of a plan, without findings on the nodes."""
    job, cluster = plan.job.model_dump(), plan.cluster.model_dump()
    del cluster["job_defaults"]  # already merged into the job
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
    """Remove variables with names of secrets, and lists that set such variables; yield their keys."""
    for key, value in [*section.items()]:
        words = value if isinstance(value, list) else ()
        assigned = [name for word in words for name in re.findall(r"(\w+)=", str(word))]
        names = [*assigned, *([key] if are_variables else [])]
        if any(SECRETS.fullmatch(name) or name.upper().endswith("_KEY") for name in names):
            section[key] = type(value)()  # an empty value, so that the key stays
            yield f"{prefix}{key}"
        elif isinstance(value, dict):
            yield from _without_secrets(value, f"{prefix}{key}.", are_variables=key in _ENVIRONMENTS)


def cannot_write(folder: Path, error: OSError) -> RenderError:
    """Return the error for a run's or a sweep's folder that cannot be written, with a hint."""
    hint = _REMEDIES.get(error.errno or 0, "choose a folder you may write to with --runs")
    return RenderError(f"The run folder {folder} cannot be written: {error.strerror}.", hint=hint)


def runtime_zipapp(further: Mapping[str, bytes] | None = None) -> bytes:
    """Return the runtime and ``further`` files as an executable zip: the same bytes for the same code."""
    package = resources.files("trtllm_hpc")
    files = {f"trtllm_hpc/{name}": package.joinpath(name).read_bytes() for name in _ZIPPED}
    files |= dict(_sources(package.joinpath("runtime"), "trtllm_hpc/runtime"))
    files |= further or {}
    files["__main__.py"] = b"import sys\n\nfrom trtllm_hpc.runtime.__main__ import main\n\nsys.exit(main())\n"
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            # A fixed date, so that the bytes depend only on the code. The fastest compression takes half the
            # time of the default, and needs a fifth more space.
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, compresslevel=1)
    return b"#!/usr/bin/env python3\n" + buffer.getvalue()


def _sources(
    folder: Traversable, name: str, skipped: Collection[str] = ("__pycache__",)
) -> Iterator[tuple[str, bytes]]:
    """Yield name in the zip and content of every Python and JSON file below a package's folder."""
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir() and item.name not in skipped:
            yield from _sources(item, f"{name}/{item.name}", skipped)
        elif item.name.endswith((".py", ".json")):
            yield f"{name}/{item.name}", item.read_bytes()


def protobuf_files() -> dict[str, bytes]:
    """Return protobuf in pure Python and Triton's schema, by their names in the zipapp.

    The zipapp needs them if the job itself fills the model repository. Both come from this installation, so
    their versions match.
    """
    protobuf = resources.files("google.protobuf")
    files = dict(_sources(protobuf, f"{VENDORED}/google/protobuf", skipped=_NOT_NEEDED))
    # A regular package, so that it is not merged with a "google" of the container, whose compiled part of
    # another protobuf version would then be used.
    files[f"{VENDORED}/google/__init__.py"] = b""
    schema = resources.files("tritonclient").joinpath("grpc").joinpath("model_config_pb2.py")
    files[f"{VENDORED}/model_config_pb2.py"] = schema.read_bytes()
    # protobuf's licence requires that every copy contains it.
    text = metadata.distribution("protobuf").read_text("LICENSE")
    return files | ({f"{VENDORED}/google/protobuf/LICENSE": text.encode()} if text else {})
