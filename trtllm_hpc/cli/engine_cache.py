"""The options that name a cache of engines, and the cache that they name."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trtllm_hpc.cli.completion import engines as complete_engines

if TYPE_CHECKING:
    from trtllm_hpc.runtime.engine_cache.cache import Cache

Command = TypeVar("Command", bound=Callable[..., Any])


def cache_options(command: Command) -> Command:
    """``--engines`` and ``--cluster``; passed on as ``folder`` and ``cluster``, for :func:`cache_of`."""
    command = click.option(
        "--engines",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder of the cache, instead of the profile's or $TRTLLM_HPC_ENGINES.",
    )(command)
    return click.option(
        "--cluster",
        metavar="PROFILE",
        envvar="TRTLLM_HPC_CLUSTER",
        show_envvar=True,
        help="Cluster profile whose cache is meant: a file, or a name.",
    )(command)


def cache_of(folder: Path | None, cluster: str | None) -> Cache:
    """The cache that the options name; it need not be there.

    Raises:
        ConfigError: it is closed to this person.
    """
    from trtllm_hpc.paths import default_runs_folder, engines_folder
    from trtllm_hpc.runtime.engine_cache.cache import Cache
    from trtllm_hpc.validation.load import load_cluster

    if folder is not None:
        return Cache(_open(folder.absolute(), "--engines"))
    named, runs = None, default_runs_folder()
    if cluster is not None:
        profile = load_cluster(cluster)
        named, runs = profile.engines_folder, Path(profile.runs_folder or runs)
    return Cache(_open(engines_folder(named, runs), "engines_folder"))


def _open(folder: Path, key: str) -> Path:
    """The folder, which need not be there; ConfigError where it is closed to this person."""
    from trtllm_hpc.errors import ConfigError, Diagnostic

    try:
        list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        hint = f"see what is in the way (namei -l {shlex.quote(str(folder))}), or name another with --engines"
        message = f"{folder}: {error.strerror}"
        raise ConfigError(
            [Diagnostic("unreadable", message, "the cache of engines", key, hint=hint)]
        ) from None
    return folder


def _names(folder: Path | None, cluster: str | None) -> list[str]:
    return [entry.name for entry in cache_of(folder, cluster).entries()]


complete_name = complete_engines(_names)
