"""Mounts: the folders of the nodes' file systems that are visible in the container."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile

_DRAFT_MODELS = ("speculative_model_dir", "speculative_model")
"""Keys of the LLM API's ``speculative_config``, old and new."""


def all_mounts(job: JobFile, cluster: ClusterProfile, own: Sequence[str]) -> tuple[str, ...]:
    """Return mounts as ``source:target[:flags]``: our ``own`` folders, the job file's, and the profile's.

    A path of the job file below a mount of the profile is a path inside the container and gets no mount of
    its own.
    """
    configured = cluster.container.mounts
    covered = [*own, *(target_of(mount) for mount in configured)]
    named = dict.fromkeys(path for _, path in named_folders(job) if not is_below(path, covered))
    read = (f"{path}:{path}:ro" for path in named if not set(path) & set(misread(cluster)))
    return (*(f"{folder}:{folder}" for folder in own), *read, *configured)


def misread(cluster: ClusterProfile) -> str:
    """Return the characters that a path in a mount cannot contain with this profile's container."""
    entry = cluster.container.entry
    return entry.misread if entry is not None else ",:"


def named_folders(job: JobFile) -> Iterator[tuple[str, str]]:
    """Return every path in a job file that jobs read, with its key."""
    engine, repository = job.engine, job.repository
    phases = job.serve.disaggregated
    settings = [engine.llm_api, *(phase.llm_api for _, phase in phases.roles)] if phases else [engine.llm_api]
    drafts = [draft for keys in settings if isinstance(draft := keys.get("speculative_config"), Mapping)]
    draft_models = [str(draft.get(key)) for draft in drafts for key in _DRAFT_MODELS]
    named: dict[str, Iterable[str | None]] = {
        "model.path": [job.model.path],
        "engine.directory": [engine.directory],
        "engine.quantization.calibration_dataset": [engine.quantization.calibration_dataset],
        "engine.quantization.checkpoint": [engine.quantization.checkpoint],
        "engine.llm_api.speculative_config": [path for path in draft_models if path.startswith("/")],
        "model.tokenizer": [job.model.tokenizer],
        "engine.lora.adapters": engine.lora.adapters,
        "repository.models": [copy.engine for copy in repository.models],
        "serve.disaggregated": [phases.context.engine, phases.generation.engine] if phases else [],
    }
    return ((key, path) for key, paths in named.items() for path in paths if path is not None)


def target_of(mount: str) -> str:
    """Return the path in the container of a mount, ``source:target[:flags]`` or a bare ``folder``."""
    source, *rest = mount.split(":")
    return rest[0] if rest else source


def outside(path: str, mounts: Sequence[str]) -> str:
    """Return the path on the node of a path inside the container, by the deepest mount above it."""
    targets = {target_of(mount): mount.partition(":")[0] for mount in mounts}
    above = max((target for target in targets if is_below(path, [target])), key=len, default=None)
    return (
        path if above is None else str(PurePosixPath(targets[above], PurePosixPath(path).relative_to(above)))
    )


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Return whether one of the folders is ``path`` or contains it."""
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)
