"""Read from a rendered run what upstream's programs get: command lines in the scripts, and files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import yaml

from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime import front
from trtllm_hpc.runtime.server_spec import ServerSpec, expand

PHASES = ("context", "generation")
_ADDRESS = {"address": "127.0.0.1", "port": 8000}


def servers(paths: RunPaths) -> Iterator[tuple[str | None, tuple[str, ...], dict[str, Any]]]:
    """Yield each phase with the arguments of ``trtllm-serve`` and the content of their YAML file."""
    for role in (None, *PHASES):
        spec = ServerSpec.read(paths.server(role))
        if spec is not None and paths.llm_api(role).exists():
            words = tuple(expand(spec.leader[1:], _ADDRESS))
            yield role, words, yaml.safe_load(paths.llm_api(role).read_text())


def model_yaml(paths: RunPaths) -> dict[str, Any] | None:
    """Return the ``model.yaml`` of the LLM API's Triton model; ``None`` if the run has no such model."""
    recipe: Any = read_json(paths.repository_recipe) or {"models": []}
    files = [model["files"]["1/model.yaml"] for model in recipe["models"] if "1/model.yaml" in model["files"]]
    return next(map(yaml.safe_load, files), None)


def front_words(paths: RunPaths) -> tuple[str, ...]:
    """Return the arguments of ``trtllm-serve`` in ``front.sh``; empty without a disaggregated front."""
    script = paths.script("front")
    if not script.exists():
        return ()
    words = shlex.split(script.read_text().replace("$run", str(paths.folder)), comments=True)
    return tuple(words[words.index("disaggregated") :])


def front_file(paths: RunPaths, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the configuration that the front server gets when ``counts`` servers of each phase are ready."""
    servers = {
        role: [f"127.0.0.1:{9000 + 100 * phase + number}" for number in range(count)]
        for phase, (role, count) in enumerate(counts.items())
    }
    paths.servers_key.write_text("0" * 32)  # in a real run, the supervisor writes the key before the front
    with mock.patch.object(front, "start_bound"):
        front.Front(paths, servers, [0]).start(())
    file: dict[str, Any] = yaml.safe_load(paths.front_started.read_text())
    return file
