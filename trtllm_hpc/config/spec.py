"""The job file that a run folder holds: ``spec.yaml``, with every default written out."""

from __future__ import annotations

from pathlib import Path

from trtllm_hpc.config.explain import validate
from trtllm_hpc.config.files import read_tree
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import ConfigError


def read_spec(path: Path) -> JobFile:
    """Read the job file of a run.

    Raises:
        ConfigError: it cannot be read, or is of another version; with every finding.
    """
    tree, findings = read_tree(path, "job file of the run")
    job = None
    if tree is not None:
        job, more = validate(JobFile, tree)
        findings += more
    if job is None or findings:
        raise ConfigError(findings, hint="the run is perhaps of another version; submit its job file again")
    return job
