"""``lock.json`` in the place of a job file: its job and its profile, with the secrets of today."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from trtllm_hpc.config.files import find_job
from trtllm_hpc.config.layers import CLUSTER_PREFIX
from trtllm_hpc.config.tree import Place, Tree
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.runtime.lock import Lock


def read_lock(path: Path) -> Lock | None:
    """Return the lock in a file or a run folder; ``None`` if it is a job file or cannot be read."""
    path = find_job(path)
    return Lock.read(path) if path.suffix == ".json" else None


def locked_trees(lock: Lock, path: Path) -> tuple[Tree, Tree]:
    """Return the trees of job and profile, without lines."""
    place = Place(str(path))
    return Tree.of(lock.job, place), Tree.of(lock.cluster, place._replace(prefix=f"{CLUSTER_PREFIX}."))


def secret_settings(lock: Lock, path: Path, settings: Sequence[str]) -> tuple[list[str], list[Diagnostic]]:
    """Return, as for ``--set``, what the lock leaves out: from environment variables of the same names.

    What neither a variable nor one of ``settings`` gives is reported.
    """
    given = {setting.partition("=")[0] for setting in settings}
    found, missing = [], []
    for key in lock.left_out:
        name = key.rpartition(".")[2]
        if any(key == it or key.startswith(f"{it}.") for it in given):
            continue
        if name in os.environ:
            found.append(f"{key}={json.dumps(os.environ[name])}")
            continue
        message = "looks secret, so the lock does not have its value"
        variable = f"export {name}=... before this command, or add " if name.isupper() else "add "
        hint = f"{variable}--set {key}=VALUE"
        missing.append(Diagnostic("left-out", message, str(path), key, hint=hint))
    return found, missing
