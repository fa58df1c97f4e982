"""Other ways to serve under a fault: with other settings, without Slurm, or ``trtllm-serve``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.faults.scene import Scene, injection
from tests.slurm.conftest import Person
from tests.slurm.test_backbone import SMALL
from tests.slurm.upstream_site import Site, upstream_site
from tests.upstream.container import add_llm_api


@injection
def set(scene: Scene, *settings: str) -> Iterator[None]:
    """The job is submitted with other settings."""
    for setting in settings:
        scene.words += ["--set", setting]
    yield


@injection
def without_slurm(scene: Scene) -> Iterator[None]:
    """The profile ``local``: all stages are processes of this machine."""
    settings = json.loads(scene.person.profile.read_text())
    for key in ("slurm_conf", "partition"):
        del settings[key]
    profile = scene.person.folder / "local.yaml"
    profile.write_text(json.dumps({**settings, "name": "local", "scheduler": "local", "gpus_per_node": 0}))
    scene.person = replace(scene.person, profile=profile)
    yield


@contextmanager
def with_upstream(person: Person, engine: Path) -> Iterator[Site]:
    """Give a person's cluster a container with stand-ins of ``trtllm-serve`` and its launcher."""
    profile = json.loads(person.profile.read_text())
    person.profile.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in profile.items()))
    with upstream_site(person, next(engine.rglob("tokenizer")), "1.2.0", {}) as made:
        add_llm_api(made.container)
        yield made


@injection
def trtllm_serve(scene: Scene) -> Iterator[None]:
    """Two ranks that a stand-in of ``trtllm-serve`` and its launcher serve."""
    requests = scene.sections["companion"]["benchmark"]["requests"]
    request = {"prompt": "hello", "max_tokens": 4}
    scene.sections = {
        "repository": {},
        "engine": {"backend": "pytorch", "tensor_parallel": 2, "max_input_len": None},
        "serve": {"nodes": 2, "ready_timeout_seconds": 120},
        "companion": {"request": request, "benchmark": {**SMALL, "requests": requests}},
    }
    with with_upstream(scene.person, scene.site.engines[1]) as made:
        scene.person = made
        yield
