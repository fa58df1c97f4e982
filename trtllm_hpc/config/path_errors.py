"""Errors of the system about a path, as diagnostics about the key that names the path."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import ConfigError, Diagnostic


@contextmanager
def path_errors(
    job: JobFile | None, cluster: ClusterProfile, options: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Turn an OSError about a path that a key or one of ``options`` (``--runs``) names into a ConfigError.

    Paths are not tried beforehand, since the compute nodes may see what a login node does not.
    """
    try:
        yield
    except OSError as error:
        found = path_diagnostic(error, job, cluster, options)
        if found is None:
            raise
        raise ConfigError([found]) from None


def path_diagnostic(
    error: OSError, job: JobFile | None, cluster: ClusterProfile, options: Mapping[str, str] | None = None
) -> Diagnostic | None:
    """Return the diagnostic about the key that names the error's path; ``None`` if no key does."""
    if error.filename is None:
        return None
    path = os.fsdecode(error.filename)
    files = {
        "the job file": job.model_dump() if job is not None else {},
        # The node-local folders are not read, and every path in /tmp would be theirs.
        "the cluster profile": cluster.model_dump(exclude={"node_local_folders"}),
    }
    named = [(value, file, key) for file, plain in files.items() for key, value in _paths(plain)]
    named += [(value, "the command line", key) for key, value in (options or {}).items()]
    fitting = [entry for entry in named if PurePath(path).is_relative_to(entry[0])]
    # When a folder is to be made, the error may be about one of its parents.
    fitting = fitting or [entry for entry in named if PurePath(entry[0]).is_relative_to(path)]
    if not fitting:
        return None
    value, file, key = max(fitting, key=lambda entry: len(entry[0]))
    message = f"{path}: {error.strerror or error}"
    hint = f"check its permissions (namei -l {shlex.quote(path)}), or set {key} to another path"
    return Diagnostic("unreadable", message, file, key, value=value, hint=hint)


def _paths(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each dotted key whose value is a path, and the path."""
    for name, value in plain.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                yield from _paths(item, f"{prefix}{name}.")
            elif isinstance(item, str) and item.startswith("/"):
                # A mount is source:target:flags, and only the source lies on this machine.
                yield prefix + name, item.partition(":")[0] if name == "mounts" else item
