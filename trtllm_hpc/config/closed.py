"""Which key of the files named a path that the system refuses to look at."""

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

Named = tuple[str, str]
"""A key, dotted, and the path that it names."""


@contextmanager
def naming_keys(
    job: JobFile | None, cluster: ClusterProfile, further: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Turn what the system refuses of a path in the files into a finding about its key.

    A login node may be closed to what the compute nodes read, so nothing is asked beforehand.

    Args:
        further: paths that stand in neither file, by what named them, e.g. ``--runs``.

    Raises:
        ConfigError: a key, or one of ``further``, named the path. Any other OSError goes on as it is.
    """
    try:
        yield
    except OSError as error:
        found = refused(error, job, cluster, further)
        if found is None:
            raise
        raise ConfigError([found]) from None


def refused(
    error: OSError, job: JobFile | None, cluster: ClusterProfile, further: Mapping[str, str] | None = None
) -> Diagnostic | None:
    """The finding about the key that named the path; ``None`` where none did."""
    if error.filename is None:
        return None
    path = os.fsdecode(error.filename)
    named = [("the job file", *item) for item in _paths(job.model_dump() if job is not None else {})]
    named += [("the cluster profile", *item) for item in _paths(cluster.model_dump())]
    named += [("the command line", *item) for item in (further or {}).items()]
    fitting = [item for item in named if PurePath(path).is_relative_to(item[2])]
    # A parent may be what is refused, when a folder is to be made.
    fitting = fitting or [item for item in named if PurePath(item[2]).is_relative_to(path)]
    if not fitting:
        return None
    file, key, value = max(fitting, key=lambda item: len(item[2]))
    message = f"{path}: {error.strerror or error}"
    hint = f"see what is in the way (namei -l {shlex.quote(path)}), or set {key} to another path"
    return Diagnostic("unreadable", message, file, key, value=value, hint=hint)


def _paths(plain: Mapping[str, Any], prefix: str = "") -> Iterator[Named]:
    for name, value in plain.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{name}.")
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                yield from _paths(item, f"{prefix}{name}.")
            elif isinstance(item, str) and item.startswith("/"):
                # A mount is source:target:flags, and the source is what lies here.
                yield prefix + name, item.partition(":")[0] if name == "mounts" else item
