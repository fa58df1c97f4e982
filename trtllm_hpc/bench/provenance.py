"""Provenance of a measurement: server, model, nodes and software, so that figures can be reproduced."""

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
"""Client packages whose versions are recorded, if installed."""


def provenance(paths: RunPaths, endpoint: Endpoint, job: JobFile | None) -> dict[str, Any]:
    """Return the provenance of a measurement, without its workload, as plain JSON types.

    The sections are ``run``, ``server``, ``engine`` and ``client``, or ``server`` and ``client`` without a
    run. Unknown facts are missing or ``None``, because the measurement is worth keeping without them.
    """
    here = socket.gethostname()
    try:
        is_here = ip_address(endpoint.address).is_loopback
    except ValueError:
        is_here = endpoint.address == "localhost"
    client = {
        "host": here,
        # Client and server share the CPUs of this host.
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
    # Ranks over which a server splits the model; the servers of disaggregated phases can differ.
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
    """Return the section ``workload`` about a file of requests."""
    digest = None
    with suppress(OSError):
        digest = sha256_of(file)
    return {"file": file.name, "sha256": digest}


def _server(run: RunSnapshot, endpoint: Endpoint) -> dict[str, Any]:
    """Return the nodes of the ranks, by the ranks' records, with the preflight's facts about the nodes."""
    world_sizes = () if run.plan is None else run.plan.world_sizes
    by_host = {record.host: record.details for step in run.steps("preflight") for record in run.ranks(step)}
    ranks = list[dict[str, Any]]()
    for step, world_size in zip(run.steps("serve"), world_sizes, strict=False):
        for rank in range(world_size):
            if (record := RankRecord.read(run.paths.rank_record(step, rank))) is not None:
                details = by_host.get(record.host, {})
                keys = ("gpus", "gpu_models", "mpi_library")
                facts = {key: details[key] for key in keys if details.get(key)}
                ranks.append({"rank": rank, "host": record.host, **facts})
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
        "nodes": list(dict.fromkeys(rank["host"] for rank in ranks)) or [endpoint.host],
        "world_size": world_sizes[0] if world_sizes else None,
        "gpus": run.stages.get("serve") or 0,
        **({"instances": endpoint.instances} if endpoint.instances > 1 else {}),
        "ranks": ranks,
        **container,
    }


def _built(run: RunSnapshot) -> dict[str, Any]:
    """Return the record of an engine in the cache, or only the folder of any other engine."""
    with suppress(OSError):
        # The run folder's link, or the plan's finished engine, points to the output of a cache entry.
        engine = run.paths.engine if run.plan is None else Path(run.plan.engine_folder)
        output = engine.resolve(strict=True)
        entry, manifest = CacheEntry(output.parent), Manifest.read(output / MANIFEST)
        record = entry.key() or {}
        if manifest is None:
            return {"folder": str(output)}
        return {
            "folder": str(output),
            "key": record.get("key"),
            "layout": (record.get("about") or {}).get("layout"),
            "built_at": manifest.built_at,
            "versions": dict(manifest.versions),
        }
    return {}


def _cpu_model() -> str | None:
    """Return the model name in /proc/cpuinfo (proc(5)), else the architecture, as on ARM."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n"):
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine() or None
