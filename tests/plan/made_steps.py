"""Job files as values, and the steps that they become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtllm_hpc.backends import backend_of, facts_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.build_steps import make_steps
from trtllm_hpc.engines.facts import EngineFacts
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.layout import make_layout
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import Plan, make_plan
from trtllm_hpc.runtime.engine_cache.build_recipe import Argument, BuildStep
from trtllm_hpc.tensorrt_llm.releases.release import find_release
from trtllm_hpc.validation.load import problems

Site = ClusterProfile | None
Config = Mapping[str, Any] | None


def job(release: str, family: str = "llama", model: str = "/models/m", **keys: Any) -> JobFile:
    """A job for TensorRT-LLM; ``keys`` are sections, ``engine`` is filled up."""
    engine = {"backend": "tensorrtllm", "tensorrt_llm_version": release, **keys.pop("engine", {})}
    repository = keys.pop("repository", {})
    builds = engine["backend"] != "pytorch"
    by_build_py = builds and find_release(None, release).program("build.py", family) is not None
    if by_build_py and "inflight_batching" not in engine:
        # What build.py makes without its switch serves the V1 way only.
        repository = {"batching_strategy": "V1", **repository}
    named = {"path": model, "family": None if family == "-" else family}
    sections = {"model": named, "engine": engine, "repository": repository}
    return JobFile.model_validate({"name": "x", **sections, **keys})


def cluster(**keys: Any) -> ClusterProfile:
    """A profile of nodes with eight GPUs."""
    return ClusterProfile.model_validate({"name": "site", "gpus_per_node": 8, **keys})


def found(made: JobFile, where: Site = None) -> list[Diagnostic]:
    """What is wrong with it."""
    return problems(facts_of(made, where or cluster()))


def steps(made: JobFile, where: Site = None, config: Config = None) -> tuple[BuildStep, ...]:
    """The steps of a job with which nothing is wrong."""
    assert found(made, where) == []
    return planned(made, where, config)


def planned(made: JobFile, where: Site = None, config: Config = None) -> tuple[BuildStep, ...]:
    """The steps of a job that the rules have not judged, with this ``config.json`` of the model."""
    known = _facts(made, where or cluster(), config)
    layout = make_layout(made.engine.world_size, made.serve.nodes, known.cluster.gpus_per_node)
    return make_steps(known, layout)


def made_plan(made: JobFile, where: Site = None) -> Plan:
    """The plan of a job, for a run folder of no matter."""
    return make_plan(facts_of(made, where or cluster()), RunPaths("/runs/demo"), "python3")


def notes(made: JobFile, config: Config = None) -> tuple[str, ...]:
    """The notes on a job with which nothing is wrong."""
    return backend_of(made).notes(_facts(made, cluster(), config))


def _facts(made: JobFile, where: ClusterProfile, config: Config) -> EngineFacts:
    known = EngineFacts(made, where, "exact")
    vars(known)["model_config"] = config  # as if the file had been read
    return known


def text(word: Argument) -> str:
    """A word as a person reads it; a place in angle brackets."""
    return word if isinstance(word, str) else f"<{word.name}{word.suffix}>"


def line(words: tuple[Argument, ...]) -> str:
    """A command as a person reads it."""
    return " ".join(map(text, words))


def options(words: tuple[Argument, ...] | list[str]) -> dict[str, tuple[str, ...]]:
    """Options and their values; ``--a=b`` is ``--a b``. The program and its script are left out."""
    told: dict[str, tuple[str, ...]] = {}
    name: str | None = None
    for word in map(text, words):
        if word.startswith("-") and not word[1:2].isdigit():
            name, equals, value = word.partition("=")
            told[name] = (value,) if equals else ()
        elif name is not None:
            told[name] += (word,)
    return told
