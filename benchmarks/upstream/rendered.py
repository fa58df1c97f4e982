"""What upstream gets to read of a rendered run: command lines from the scripts, and files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import yaml

from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime import front
from trtllm_hpc.runtime.server_spec import ServerSpec, expand

PHASES = ("context", "generation")
_ADDRESS = {"address": "127.0.0.1", "port": 8000}


@dataclass(frozen=True)
class Server:
    """A command line of ``trtllm-serve``, without the program's name."""

    role: str | None
    """The phase of a disaggregated run that it computes."""
    words: tuple[str, ...]
    configuration: Mapping[str, Any]
    """Its YAML file."""


def servers(paths: RunPaths) -> Iterator[Server]:
    """Yield what the ranks of each phase pass to ``trtllm-serve``."""
    for role in (None, *PHASES):
        spec = ServerSpec.read(paths.server(role))
        if spec is not None and paths.llm_api(role).exists():
            configuration = yaml.safe_load(paths.llm_api(role).read_text())
            yield Server(role, tuple(expand(spec.leader[1:], _ADDRESS)), configuration)


def model_yaml(paths: RunPaths) -> dict[str, Any] | None:
    """Return the ``model.yaml`` of the LLM API's Triton model, if the run has it."""
    if not paths.repository_recipe.exists():
        return None
    recipe = read_json(paths.repository_recipe)
    assert isinstance(recipe, dict)
    files = [model["files"]["1/model.yaml"] for model in recipe["models"] if "1/model.yaml" in model["files"]]
    loaded: dict[str, Any] | None = yaml.safe_load(files[0]) if files else None
    return loaded


def front_words(paths: RunPaths) -> tuple[str, ...]:
    """Return what ``front.sh`` passes to ``trtllm-serve``; empty if the run has no front."""
    script = paths.script("front")
    if not script.exists():
        return ()
    words = shlex.split(script.read_text().replace("$run", str(paths.folder)), comments=True)
    return tuple(words[words.index("disaggregated") :])


def write_front_file(paths: RunPaths, counts: Mapping[str, int]) -> None:
    """Write the front's file as the supervisor does once the servers are ready.

    Args:
        counts: how many servers each phase has.
    """
    servers = {
        role: [f"127.0.0.1:{9000 + 100 * at + one}" for one in range(count)]
        for at, (role, count) in enumerate(counts.items())
    }
    if (key := getattr(paths, "servers_key", None)) is not None:  # the supervisor has made it by then
        key.write_text("0" * 32)
    with mock.patch.object(front, "start_bound"):
        front.Front(paths, servers, [0], None).start(())
