"""The shipped job files and what each of them shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.backends import backend_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.dump import scalar
from trtllm_hpc.config.files import jobs, read_job
from trtllm_hpc.errors import ConfigError, Diagnostic

_GPUS_PER_NODE = 8
"""GPUs of the node that the layouts are worked out for; only the spread over nodes depends on it."""


@dataclass(frozen=True)
class ShippedJob:
    """One shipped job file."""

    name: str
    """Its name for ``submit`` and the other commands that take a JOB."""
    file: str
    """Path of the file."""
    model: str
    """Name of the synthetic model, or of the model's folder."""
    backend: str
    """``engine.backend``."""
    release: str | None
    """Release of TensorRT-LLM that the file states."""
    ranks: int
    """Of all instances together."""
    gpus: int
    """0: it needs none."""
    nodes: int
    """Nodes of eight GPUs that these are spread over."""
    gpu_types: str | None
    """The GPUs that the settings are for, ``H100 or H200``; ``None``: the file does not say."""
    summary: str
    """First sentence, up to its colon, of the comment at its top."""


def shipped_jobs() -> list[ShippedJob]:
    """Return the shipped job files by name, those that need no GPU first.

    Raises ConfigError if one of them is wrong.
    """
    return sorted((described(name, path) for name, path in jobs().items()), key=lambda job: job.gpus > 0)


def copy_of(name: str, own_name: str, model: str | None, key: str) -> str:
    """Return the text of a shipped job file with another name, and ``model.KEY``; raises ConfigError."""
    file = jobs()[name]
    # By lines, which are alike in every shipped file: ruamel's round trip would lose the comment that follows
    # the line of model.path, and write lists and null in another way.
    text, named = file.read_text(encoding="utf-8"), f"name: {scalar(own_name)}"
    text = re.sub(r"(?m)^name: .*", lambda _: named, text)
    if model is None:
        return text
    if read_job(file).model.path is None:
        message = f"{name} makes a model of its own, so there is no folder to set"
        raise ConfigError([Diagnostic("conflict", message, str(file), hint="leave --model out")])
    line = f"  {key}: {scalar(model)}"
    text, lines = re.subn(r"(?m)^  path: .*", lambda _: line, text)
    return text if lines else f"{text}\nmodel:\n{line}\n"


def described(name: str, path: Path) -> ShippedJob:
    """Return what a job file is for. Raises ConfigError if it is wrong."""
    job = read_job(path)
    cluster = ClusterProfile(name="any", partition="any", gpus_per_node=_GPUS_PER_NODE)
    backend = backend_of(job)
    [layout] = backend.topology(job, cluster).components
    text = path.read_text(encoding="utf-8")
    gpu_types = re.search(r"(?m)^# GPUs: (.+)$", text)
    return ShippedJob(
        name,
        str(path),
        job.model.synthetic or Path(job.model.path or "").name,
        job.engine.backend,
        job.engine.tensorrt_llm_version,
        layout.world_size,
        layout.nodes * layout.gpus_per_node if backend.needs_gpus else 0,
        layout.nodes,
        gpu_types[1] if gpu_types else None,
        _summary(text),
    )


def _summary(text: str) -> str:
    """Return the first sentence, up to its colon, of the comment at the top of a job file."""
    lines = []
    for line in text.splitlines():
        comment = line.removeprefix("#").strip()
        if not line.startswith("#") or not comment:
            break
        lines.append(comment)
    comment = " ".join(lines)
    sentence = re.match(r".+?(?=[.:](?:\s|$))", comment)
    return sentence[0] if sentence else comment
