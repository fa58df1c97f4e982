"""``lock.json``: everything a run is made of, so that it can be repeated and compared with another run.

The file is written with the run folder; the supervisor adds the preflight's findings on the nodes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.engine_cache.keys import files_of, is_large
from trtllm_hpc.runtime.engine_cache.shared_files import sha256_of
from trtllm_hpc.runtime.plan_record import PlanRecord
from trtllm_hpc.runtime.records import JsonRecord, rank_records

_HEADER_BYTES = 65_536
"""Bytes of an image that are hashed: the headers of squashfs and SIF contain a creation time and an ID."""

_NODE_KEYS = ("gpus", "gpu_limits", "packages", "mpi_library")


@dataclass(frozen=True)
class Lock(JsonRecord):
    """Everything a run is made of, without secrets."""

    version: str
    """Version of trtllm-hpc."""
    job: dict[str, Any]
    """The job file with every default written out."""
    cluster: dict[str, Any]
    """The cluster profile with every default written out."""
    left_out: list[str] = field(default_factory=list)
    """Keys left out of the lock because their values look secret, in the form that `--set` takes."""
    release: str | None = None
    """Release of TensorRT-LLM that the scripts are for."""
    image: dict[str, Any] | None = None
    """The container image: its `name`; for a file also its size in `bytes` and the hash of its `header`."""
    checkpoint: dict[str, Any] | None = None
    """Each file of `model.path`: its size in bytes and, unless it holds weights, its hash."""
    nodes: list[dict[str, Any]] = field(default_factory=list)
    """The preflight's findings on each node: GPUs with driver and memory, their highest clocks and power
    limit, and the packages of the image."""

    @property
    def made_of(self) -> dict[str, Any]:
        """The known facts, beside settings, that a repetition should share with the run."""
        texts = {
            key: {json.dumps(node.get(key), sort_keys=True) for node in self.nodes} for key in _NODE_KEYS
        }
        nodes = {key: [json.loads(text) for text in sorted(different)] for key, different in texts.items()}
        facts = {
            "trtllm-hpc": {"version": self.version} if self.version else None,
            "TensorRT-LLM": {"release": self.release},
            "image": self.image,
            "checkpoint": self.checkpoint,
            "nodes": {"count": len(self.nodes), **nodes} if self.nodes else None,
        }
        return {key: value for key, value in facts.items() if value}


def image_facts(image: str) -> dict[str, Any]:
    """Return an image's name and, if it is a readable file, its size in bytes and a hash of its header."""
    facts: dict[str, Any] = {"name": image}
    with suppress(OSError, ValueError):
        path = Path(image)
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        facts |= {"bytes": path.stat().st_size, "header": hashlib.sha256(header).hexdigest()}
    return facts


def fingerprint(folder: str | None) -> dict[str, Any] | None:
    """Return size and hash of each file of a checkpoint; weights have no hash. ``None``: not readable."""
    if folder is None:
        return None
    try:
        facts = {}
        for name, path in files_of(Path(folder)):
            stat = path.stat()
            digest = (
                None if is_large(path, stat.st_size) else _hash(str(path), stat.st_size, stat.st_mtime_ns)
            )
            facts[name] = [stat.st_size, digest]
        return facts or None
    except OSError:
        return None


@lru_cache(maxsize=1024)
def _hash(path: str, size: int, changed_at_ns: int) -> str:
    """Return a file's hash; cached, because all variants of a sweep hash the same files."""
    return sha256_of(Path(path))


def changes(before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield key, old value and new value of each difference, in the parts that both sides have."""
    for part in before:
        if part not in now:
            continue
        for key in dict.fromkeys((*before[part], *now[part])):
            if before[part].get(key) != now[part].get(key):
                yield f"{part}: {key}", before[part].get(key), now[part].get(key)


def shown(value: Any) -> str:
    """Return a value for a message, with hashes shortened."""
    return re.sub(r"([0-9a-f]{8})[0-9a-f]{56}", r"\1...", json.dumps(value, ensure_ascii=False))


def add_findings(paths: RunPaths) -> None:
    """Add the preflight's findings on the nodes to the lock."""
    lock, plan = Lock.read(paths.lock), PlanRecord.read(paths)
    if lock is None or plan is None:
        return
    nodes: dict[str, dict[str, Any]] = {}
    for step in plan.steps["preflight"]:
        for record in rank_records(paths, step):
            seen = record.details
            if record.host not in nodes or seen.get("packages"):
                facts = {"gpus": seen.get("gpu_models"), **{key: seen.get(key) for key in _NODE_KEYS[1:]}}
                nodes[record.host] = {"host": record.host, **facts}
    checkpoint = lock.checkpoint or fingerprint(lock.job.get("model", {}).get("path"))
    with suppress(OSError):  # a full disk must not end the server
        replace(lock, nodes=[*nodes.values()], checkpoint=checkpoint).write(paths.lock)
