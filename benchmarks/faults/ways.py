"""Injections that change how a run serves: other settings, no Slurm, or ``trtllm-serve``."""

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
    """Submit the job with ``--set`` options."""
    for setting in settings:
        scene.words += ["--set", setting]
    yield


@injection
def without_slurm(scene: Scene) -> Iterator[None]:
    """Use the profile ``local``: all stages are processes of this machine."""
    settings = json.loads(scene.person.profile.read_text())
    for key in ("slurm_conf", "partition"):
        del settings[key]
    profile = scene.person.folder / "local.yaml"
    profile.write_text(json.dumps({**settings, "name": "local", "scheduler": "local", "gpus_per_node": 0}))
    scene.person = replace(scene.person, profile=profile)
    yield


@contextmanager
def with_upstream(person: Person, engine: Path) -> Iterator[Site]:
    """Give a person's cluster a container with fakes of ``trtllm-serve`` and its launcher."""
    profile = json.loads(person.profile.read_text())
    person.profile.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in profile.items()))
    with upstream_site(person, next(engine.rglob("tokenizer")), "1.2.0", {}) as cluster:
        add_llm_api(cluster.container)
        yield cluster


@injection
def trtllm_serve(scene: Scene) -> Iterator[None]:
    """Serve with two ranks of a fake ``trtllm-serve`` and its launcher."""
    requests = scene.sections["companion"]["benchmark"]["requests"]
    request = {"prompt": "hello", "max_tokens": 4}
    scene.sections = {
        "repository": {},
        "engine": {"backend": "pytorch", "tensor_parallel": 2, "max_input_len": None},
        "serve": {"nodes": 2, "ready_timeout_seconds": 120},
        "companion": {"request": request, "benchmark": {**SMALL, "requests": requests}},
    }
    with with_upstream(scene.person, scene.site.engines[1]) as person:
        scene.person = person
        yield
