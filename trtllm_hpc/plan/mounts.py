"""What the container sees of the nodes' file systems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile


def all_mounts(job: JobFile, cluster: ClusterProfile, own: Sequence[str]) -> tuple[str, ...]:
    """Return mounts as ``source:target[:flags]``: our own folders, the job file's, and the profile's.

    A path of the job file below a mount of the profile is a path inside the container and gets no
    mount of its own.

    Args:
        own: folders that the toolkit writes to.
    """
    given = cluster.container.mounts
    covered = [*own, *(target_of(mount) for mount in given)]
    named = dict.fromkeys(path for _, path in named_folders(job) if not is_below(path, covered))
    read = (f"{path}:{path}:ro" for path in named if can_be_mounted(path))
    return (*(f"{folder}:{folder}" for folder in own), *read, *given)


def named_folders(job: JobFile) -> Iterator[tuple[str, str]]:
    """Yield every path in a job file that jobs read, with its key."""
    engine, repository = job.engine, job.repository
    speculative = engine.speculative.model if engine.speculative is not None else None
    one: dict[str, str | None] = {
        "model.path": job.model.path,
        "engine.directory": engine.directory,
        "engine.quantization.calibration_dataset": engine.quantization.calibration_dataset,
        "engine.quantization.checkpoint": engine.quantization.checkpoint,
        "engine.speculative.model": speculative,
        "repository.tokenizer": repository.tokenizer,
    }
    several: dict[str, Iterable[str | None]] = {
        "engine.lora.adapters": engine.lora.adapters,
        "engine.lora.directories": engine.lora.directories,
        "repository.models": (copy.engine for copy in repository.models),
    }
    phases = job.serve.disaggregated
    if phases is not None:
        several["serve.disaggregated"] = (phases.context.engine, phases.generation.engine)
    yield from ((key, path) for key, path in one.items() if path is not None)
    yield from ((key, path) for key, paths in several.items() for path in paths if path is not None)


def target_of(mount: str) -> str:
    """Where ``source:target[:flags]``, or a bare ``folder``, appears in the container."""
    source, *rest = mount.split(":")
    return rest[0] if rest else source


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether one of the folders is ``path`` or above it."""
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def can_be_mounted(path: str) -> bool:
    """Whether a path can be mounted; container runtimes split mounts at commas and colons."""
    return not set(path) & {",", ":"}
