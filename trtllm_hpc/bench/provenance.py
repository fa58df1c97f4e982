"""What was measured, where and with what, so that a figure can be traced and repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Endpoint


def provenance(paths: RunPaths, endpoint: Endpoint, workload: Path | None = None) -> dict[str, Any]:
    """Everything that tells one measurement from another, as plain JSON types.

    Sections: ``run`` (id, job ids, scheduler, spec_sha256), ``server`` (job_id, host, address, nodes, ranks, gpus, image,
    phases_s, models), ``engine`` (backend, version, key, entry, folder, built_at, versions), ``client`` (host, slurm_job_id,
    same_host, cpu_model, cpus, kernel, python, packages), ``workload`` (path, sha256).

    Args:
        workload: the file of the requests, written beforehand.
    """
    raise NotImplementedError
