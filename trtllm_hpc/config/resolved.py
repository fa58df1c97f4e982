"""What loading both files gives."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile


@dataclass(frozen=True)
class Resolved:
    """A job file and a profile, valid each and together."""

    job: JobFile
    cluster: ClusterProfile
    job_file: str
    cluster_file: str
