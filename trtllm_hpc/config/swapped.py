"""A job file given as the profile, or the other way about: one finding instead of one for each key."""

from __future__ import annotations

import shlex

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.tree import Node
from trtllm_hpc.config.types import Section
from trtllm_hpc.errors import Diagnostic


def swapped(job: Node | None, cluster: Node | None) -> list[Diagnostic]:
    """The finding that a file is of the other kind; one for both if they have changed places."""
    job_is_profile = job is not None and _is(ClusterProfile, JobFile, job)
    cluster_is_job = cluster is not None and _is(JobFile, ClusterProfile, cluster)
    if job is not None and job_is_profile:
        message, job_word = "this is a cluster profile, not a job file", "JOB"
        if cluster is not None and cluster_is_job:
            message += f"; {cluster.source.file} is the job file"
            job_word = _word(cluster)
        return [_finding(job, message, f"trtllm-hpc render {job_word} --cluster {_word(job)}")]
    if cluster is not None and cluster_is_job:
        hint = f"trtllm-hpc render {_word(cluster)} --cluster PROFILE"
        return [_finding(cluster, "this is a job file, not a cluster profile", hint)]
    return []


def _finding(tree: Node, message: str, hint: str) -> Diagnostic:
    return Diagnostic("swapped", message, tree.source.file, "", hint=hint)


def _word(tree: Node) -> str:
    """The file as a word of a command; with a '/' it cannot be taken for a name of a shipped one."""
    file = tree.source.file
    return shlex.quote(file if "/" in file or file.endswith((".yaml", ".yml")) else f"./{file}")


def _is(kind: type[Section], other: type[Section], tree: Node) -> bool:
    """Whether the top-level keys are those of ``kind``, and none is of ``other`` alone."""
    keys = set(tree.value) if isinstance(tree.value, dict) else set()
    mine, others = set(kind.model_fields), set(other.model_fields)
    return not keys & (others - mine) and len(keys & (mine - others)) > len(keys - mine - others)
