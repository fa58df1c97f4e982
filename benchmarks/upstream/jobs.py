"""Job files of every kind that ``trtllm-serve`` and the LLM API's Triton model serve, made from a seed."""

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
"""What a job file can say, by subject."""


@dataclass(frozen=True)
class Case:
    """A job file, and the cluster profile to render it for."""

    name: str
    job: Job
    profile: str

    def __str__(self) -> str:
        return f"{self.name} on {self.profile}"


def cases(version: str, count: int, seed: int) -> list[Case]:
    """Return the shipped jobs that need no engine, then made ones: ``count`` in all, each on every profile.

    Args:
        version: TensorRT-LLM's, for ``engine.tensorrt_llm_version``.
    """
    jobs = chain(shipped_jobs(version).items(), _made_jobs(version, random.Random(seed)))
    return _on_profiles(islice(jobs, count), version)


def fitting_cases(version: str, count: int, seed: int, folder: Path) -> list[Case]:
    """Return the shipped jobs, and job files of ``init job --gpu``, each on every profile.

    Args:
        version: TensorRT-LLM's.
        count: job files of ``init job``, drawn from all checkpoints, kinds of GPU and goals.
        folder: for the checkpoints.
    """
    goals: tuple[Goal, ...] = ("latency", "throughput")
    jobs = shipped_jobs(version)
    here = {name: checkpoint(folder, name) for name in CHECKPOINTS}
    wanted = [(it, gpu, goal) for it in CHECKPOINTS for gpu in gpus() for goal in goals]
    most = len(jobs) + count
    for name, gpu, goal in random.Random(seed).sample(wanted, len(wanted)):
        if len(jobs) == most:
            break
        try:
            text, _ = fitting_job(here[name], "init-job", f"/models/{name}", gpu, goal)
        except ConfigError:  # such GPUs cannot hold or compute the checkpoint
            continue
        jobs[f"init job {name} {gpu} {goal}"] = _whole(text)
    return _on_profiles(jobs.items(), version)


def _on_profiles(jobs: Iterable[tuple[str, Job]], version: str) -> list[Case]:
    stated = {"engine": {"tensorrt_llm_version": version}}
    return [Case(name, merged(job, stated), profile) for name, job in jobs for profile in PROFILES]


def profile(name: str, version: str) -> dict[str, Any]:
    """Return a shipped profile with an image of that version."""
    made: dict[str, Any] = yaml.safe_load((_SHIPPED / "slurm" / f"{name}.yaml").read_text())
    if "container" in made:
        made["container"]["image"] = f"{_IMAGES[name]}{version}"
    return made


def shipped_jobs(version: str) -> dict[str, Job]:
    """Return the shipped job files that need no engine, and no release after ``version``."""
    found = {}
    for file in sorted((_SHIPPED / "jobs").glob("*.yaml")):
        job = _whole(file.read_text())
        engine = job.get("engine", {})
        wanted = engine.get("tensorrt_llm_version", "0")
        if engine.get("backend") == "pytorch" and Version(wanted) <= Version(version):
            found[file.stem] = job
    return found


def _whole(text: str) -> Job:
    """Return a job file together with the shipped one that it extends, of which ``null`` removes a key."""
    job: Job = yaml.safe_load(text)
    base = job.pop("extends", None)
    if base is None:
        return job
    return merged(_whole((_SHIPPED / "jobs" / f"{base}.yaml").read_text()), job, null_removes=True)


def _made_jobs(version: str, rng: random.Random) -> Iterator[tuple[str, Job]]:
    # Every single choice at least once, then combinations.
    for key, choices in CHOICES.items():
        for place, choice in enumerate(choices):
            if _is_known(choice, version):
                yield _made(f"{key}-{place}", rng, [choice])
    for number in numbers():
        keys = rng.sample(sorted(CHOICES), rng.randint(3, 8))
        chosen = [rng.choice(CHOICES[key]) for key in keys]
        yield _made(f"made-{number}", rng, [choice for choice in chosen if _is_known(choice, version)])


def left_out(version: str) -> list[str]:
    """Return the choices that no job file has, since the release is said to lack one of their keys."""
    every = [(f"{subject}-{place}", it) for subject, its in CHOICES.items() for place, it in enumerate(its)]
    return [name for name, choice in every if not _is_known(choice, version)]


def _is_known(choice: Mapping[str, Any], version: str) -> bool:
    configuration = choice.get("engine", {}).get("llm_api", {})
    return not unknown_keys(release_of_version(version), configuration)


def _made(name: str, rng: random.Random, choices: Sequence[Mapping[str, Any]]) -> tuple[str, Job]:
    job: Job = {
        "name": name,
        "model": {"path": rng.choice(_MODELS)},
        "engine": {"backend": "pytorch"},
        "companion": {"enabled": False},
    }
    for choice in choices:
        job = merged(job, choice)
    if "disaggregated" in job.get("serve", {}):  # the ranks are those of its phases
        job["engine"] = {key: value for key, value in job["engine"].items() if "parallel" not in key}
    return name, job


def merged(first: Mapping[str, Any], second: Mapping[str, Any], *, null_removes: bool = False) -> Job:
    """Return both, mapping by mapping; where both have a value it is the second one's."""
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
