"""Make job files for ``trtllm-serve`` and the LLM API's Triton model from a random seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from itertools import count as numbers
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from tests.runs.checkpoints import CHECKPOINTS, checkpoint
from trtllm_hpc.config.cluster import gpus
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.runs.job_files import Goal, fitting_job
from trtllm_hpc.tensorrt_llm.llm_api import unknown_keys
from trtllm_hpc.tensorrt_llm.releases.release import release_of_version

PROFILES = ("pyxis", "apptainer", "bare")
_IMAGES = {"pyxis": "nvcr.io#nvidia/tensorrt-llm/release:", "apptainer": "/images/tensorrt-llm-release:"}
_SHIPPED = Path(__file__).parents[2]
_MODELS = ("/models/Llama-3.1-8B", "/models/DeepSeek R1", "/modèles/l'été", '/models/$(x) "y" #1')

Job = dict[str, Any]
CHOICES: Mapping[str, Sequence[Job]] = yaml.safe_load((Path(__file__).parent / "choices.yaml").read_text())
"""Parts of job files by subject, from which job files are combined."""


@dataclass(frozen=True)
class Case:
    """A job file, and the cluster profile on which to render the job file."""

    name: str
    job: Job
    profile: str

    def __str__(self) -> str:
        return f"{self.name} on {self.profile}"


def cases(version: str, count: int, seed: int) -> list[Case]:
    """Return ``count`` job files on every profile: the shipped ones without engines, then combined ones.

    Args:
        version: of TensorRT-LLM, for ``engine.tensorrt_llm_version``.
        count: number of job files.
        seed: of the random choices.
    """
    jobs = chain(shipped_jobs(version).items(), _combined_jobs(version, random.Random(seed)))
    return _on_profiles(islice(jobs, count), version)


def fitting_cases(version: str, count: int, seed: int, folder: Path) -> list[Case]:
    """Return the shipped job files and job files of ``init job --gpu``, each on every profile.

    Args:
        version: of TensorRT-LLM.
        count: number of job files of ``init job``, drawn from all checkpoints, GPU models and goals.
        seed: of the random choices.
        folder: for the checkpoints.
    """
    goals: tuple[Goal, ...] = ("latency", "throughput")
    jobs = shipped_jobs(version)
    folders = {name: checkpoint(folder, name) for name in CHECKPOINTS}
    wanted = [(name, gpu, goal) for name in CHECKPOINTS for gpu in gpus() for goal in goals]
    most = len(jobs) + count
    for name, gpu, goal in random.Random(seed).sample(wanted, len(wanted)):
        if len(jobs) == most:
            break
        try:
            text, _ = fitting_job(folders[name], "init-job", f"/models/{name}", gpu, goal)
        except ConfigError:  # such GPUs cannot hold or compute the checkpoint
            continue
        jobs[f"init job {name} {gpu} {goal}"] = _whole(text)
    return _on_profiles(jobs.items(), version)


def _on_profiles(jobs: Iterable[tuple[str, Job]], version: str) -> list[Case]:
    stated = {"engine": {"tensorrt_llm_version": version}}
    return [Case(name, merged(job, stated), profile) for name, job in jobs for profile in PROFILES]


def profile(name: str, version: str) -> dict[str, Any]:
    """Return a shipped profile with the image of a TensorRT-LLM version."""
    shipped: dict[str, Any] = yaml.safe_load((_SHIPPED / "slurm" / f"{name}.yaml").read_text())
    if "container" in shipped:
        shipped["container"]["image"] = f"{_IMAGES[name]}{version}"
    return shipped


def shipped_jobs(version: str) -> dict[str, Job]:
    """Return the shipped job files that need no engine and no later release than ``version``."""
    jobs = {}
    for file in sorted((_SHIPPED / "jobs").glob("*.yaml")):
        job = _whole(file.read_text())
        engine = job.get("engine", {})
        wanted = engine.get("tensorrt_llm_version", "0")
        if engine.get("backend") == "pytorch" and Version(wanted) <= Version(version):
            jobs[file.stem] = job
    return jobs


def _whole(text: str) -> Job:
    """Return a job file merged with the shipped file that it extends; ``null`` removes a key of that file."""
    job: Job = yaml.safe_load(text)
    base = job.pop("extends", None)
    if base is None:
        return job
    return merged(_whole((_SHIPPED / "jobs" / f"{base}.yaml").read_text()), job, null_removes=True)


def _combined_jobs(version: str, rng: random.Random) -> Iterator[tuple[str, Job]]:
    # Each choice alone, then combinations of choices.
    for key, choices in CHOICES.items():
        for place, choice in enumerate(choices):
            if _is_known(choice, version):
                yield _combined(f"{key}-{place}", rng, [choice])
    for number in numbers():
        keys = rng.sample(sorted(CHOICES), rng.randint(3, 8))
        chosen = [rng.choice(CHOICES[key]) for key in keys]
        yield _combined(f"made-{number}", rng, [choice for choice in chosen if _is_known(choice, version)])


def left_out(version: str) -> list[str]:
    """Return the choices that no job file has, because this release lacks one of their keys."""
    return [
        f"{subject}-{place}"
        for subject, choices in CHOICES.items()
        for place, choice in enumerate(choices)
        if not _is_known(choice, version)
    ]


def _is_known(choice: Mapping[str, Any], version: str) -> bool:
    configuration = choice.get("engine", {}).get("llm_api", {})
    return not unknown_keys(release_of_version(version), configuration)


def _combined(name: str, rng: random.Random, choices: Sequence[Mapping[str, Any]]) -> tuple[str, Job]:
    job: Job = {
        "name": name,
        "model": {"path": rng.choice(_MODELS)},
        "engine": {"backend": "pytorch"},
        "companion": {"enabled": False},
    }
    for choice in choices:
        job = merged(job, choice)
    if "disaggregated" in job.get("serve", {}):  # the phases determine the number of ranks
        job["engine"] = {key: value for key, value in job["engine"].items() if "parallel" not in key}
    return name, job


def merged(first: Mapping[str, Any], second: Mapping[str, Any], *, null_removes: bool = False) -> Job:
    """Merge two mappings, including their inner mappings. Values of ``second`` win."""
    both = dict(first)
    for key, value in second.items():
        before = both.get(key)
        if isinstance(value, dict):
            before = before if isinstance(before, dict) else {}
            both[key] = merged(before, value, null_removes=null_removes)
        elif value is None and null_removes:
            both.pop(key, None)
        else:
            both[key] = value
    return both
