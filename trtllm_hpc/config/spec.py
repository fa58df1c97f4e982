"""The two files that a run folder holds, ``spec.yaml`` and ``cluster.yaml``, with every default in them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.explain import validate
from trtllm_hpc.config.files import read_tree
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.types import Section
from trtllm_hpc.errors import ConfigError

Model = TypeVar("Model", bound=Section)


def read_spec(path: Path) -> JobFile:
    """Read the job file of a run.

    Raises:
        ConfigError: it cannot be read, or another version of this package wrote it; with every finding.
    """
    return _read(JobFile, path, "job file of the run")


def read_cluster(path: Path) -> ClusterProfile:
    """Read the cluster profile of a run.

    Raises:
        ConfigError: as :func:`read_spec`.
    """
    return _read(ClusterProfile, path, "cluster profile of the run")


def _read(model: type[Model], path: Path, what: str) -> Model:
    tree, findings = read_tree(path, what)
    value = None
    if tree is not None:
        value, more = validate(model, tree)
        findings += more
    if value is None or findings:
        hint = "another version of trtllm-hpc may have written the run; submit its job file again"
        raise ConfigError(findings, hint=hint)
    return value
