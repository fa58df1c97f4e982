"""What was measured, where and with which software, so that a figure can be traced and reproduced."""

from __future__ import annotations

import os
import platform
import socket
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from trtllm_hpc import __version__
from trtllm_hpc.config.files import read_cluster
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.checks import installed_versions
from trtllm_hpc.runtime.engine_cache.cache import MANIFEST, CacheEntry, Manifest
from trtllm_hpc.runtime.engine_cache.shared_files import sha256_of
from trtllm_hpc.runtime.records import Endpoint, RankRecord

PACKAGES = ("tritonclient", "grpcio", "numpy", "protobuf", "tokenizers", "httptools")
"""Packages of the client whose versions are recorded, if installed."""


def provenance(paths: RunPaths, endpoint: Endpoint, job: JobFile | None) -> dict[str, Any]:
    """Return the provenance of a measurement as plain JSON types, but for its workload.

    Its sections are ``run``, ``server``, ``engine`` and ``client``; of a server without a run only ``server``
    and ``client``. What is unknown is left out or ``None``: the measurement is worth keeping without it.
    """
    here = socket.gethostname()
    try:
        is_here = ip_address(endpoint.address).is_loopback
    except ValueError:
        is_here = endpoint.address == "localhost"
    client = {
        "host": here,
        # They share its CPUs.
        "same_host_as_server": is_here or endpoint.host == here,
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": {"trtllm-hpc": __version__, **installed_versions(PACKAGES)},
    }
    if job is None:
        server = {"host": endpoint.host, "url": endpoint.place, "models": list(endpoint.models)}
        return {"server": server, "client": client}
    run, engine = RunSnapshot(paths), job.engine
    stages = run.submission.stages if run.submission else {}
    # How many ranks a server splits the model over; servers of several kinds are not alike.
    kinds = () if job.serve.disaggregated else ("tensor", "pipeline", "context", "moe_expert")
    sizes = {name: getattr(engine, name) for name in (f"{kind}_parallel" for kind in kinds)}
    return {
        "run": {
            "id": paths.run_id,
            "folder": str(paths.folder),
            "jobs": {stage: submitted.job_id for stage, submitted in stages.items()},
        },
        "server": _server(run, endpoint),
        "engine": {
            "backend": engine.backend,
            "model": job.model.path or job.model.synthetic,
            "tensorrt_llm": None if run.plan is None else run.plan.release,
            **{name: size for name, size in sizes.items() if size},
            **_built(run),
        },
        "client": client,
    }


def workload_provenance(file: Path) -> dict[str, Any]:
    """Return the section ``workload``, of a file of requests."""
    digest = None
    with suppress(OSError):
        digest = sha256_of(file)
    return {"file": file.name, "sha256": digest}


def _server(run: RunSnapshot, endpoint: Endpoint) -> dict[str, Any]:
    """Return where the ranks run, by their own records, and what the preflight found on their nodes."""
    world_sizes = () if run.plan is None else run.plan.world_sizes
    found = {record.host: record.details for step in run.preflight_steps for record in run.ranks(step)}
    known = list[dict[str, Any]]()
    for step, world_size in zip(run.serve_steps, world_sizes, strict=False):
        for rank in range(world_size):
            if (record := RankRecord.read(run.paths.rank_record(step, rank))) is not None:
                seen = found.get(record.host, {})
                facts = {it: seen[it] for it in ("gpus", "gpu_models", "mpi_library") if seen.get(it)}
                known.append({"rank": rank, "host": record.host, **facts})
    container = dict[str, Any]()
    with suppress(ConfigError, OSError):
        profile = read_cluster(run.paths.cluster)
        of_profile = profile.container
        container = {"cluster": profile.name, "container": of_profile.runtime, "image": of_profile.image}
    return {
        "job_id": endpoint.job_id,
        "host": endpoint.host,
        "address": endpoint.address,
        "models": list(endpoint.models),
        "nodes": list(dict.fromkeys(rank["host"] for rank in known)) or [endpoint.host],
        "world_size": world_sizes[0] if world_sizes else None,
        "gpus": run.planned_gpus.get("serve", 0),
        **({"instances": endpoint.instances} if endpoint.instances > 1 else {}),
        "ranks": known,
        **container,
    }


def _built(run: RunSnapshot) -> dict[str, Any]:
    """Return the record of an engine in the cache; only the folder of one from elsewhere."""
    with suppress(OSError):
        # The run folder's link, or the finished engine that the plan names, leads to an entry's output.
        engine = run.paths.engine if run.plan is None else Path(run.plan.engine_folder)
        output = engine.resolve(strict=True)
        entry, made = CacheEntry(output.parent), Manifest.read(output / MANIFEST)
        record = entry.key() or {}
        if made is None:
            return {"folder": str(output)}
        return {
            "folder": str(output),
            "key": record.get("key"),
            "layout": (record.get("about") or {}).get("layout"),
            "built_at": made.built_at,
            "versions": dict(made.versions),
        }
    return {}


def _cpu_model() -> str | None:
    """Return the model name of /proc/cpuinfo (proc(5)), which ARM does not have."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n"):
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine() or None
