"""Other ways to serve under a fault: without Slurm, several instances, or ``trtllm-serve``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.faults.kill import Find, Injection
from benchmarks.faults.scene import Scene
from tests.slurm.conftest import USER
from tests.slurm.test_backbone import SMALL, server_process
from tests.slurm.upstream_site import upstream_site
from tests.upstream.container import add_llm_api
from trtllm_hpc.sandbox import processes


@contextmanager
def without_slurm(scene: Scene) -> Iterator[None]:
    """The profile ``local``: all stages are processes of this machine."""
    settings = json.loads(scene.person.profile.read_text())
    for key in ("slurm_conf", "partition"):
        del settings[key]
    profile = scene.person.folder / "local.yaml"
    profile.write_text(json.dumps({**settings, "name": "local", "scheduler": "local", "gpus_per_node": 0}))
    scene.person = replace(scene.person, profile=profile)
    yield


def here(*words: str, name: str = "", script: str = "") -> Find:
    """A process of a run without Slurm: by its program, by whole words, or by a script of the run."""

    def find(scene: Scene) -> int:
        wanted = {*words, *([str(scene.paths.scripts / script)] if script else [])}
        found = [
            one.pid
            for one in processes.all_processes()
            if processes.owner(one.pid) == USER.pw_uid
            and str(scene.person.folder).encode() in _environment(one.pid)
            and name in Path(one.arguments[0]).name
            and wanted <= set(one.arguments)
        ]
        assert found, (words, name, script)
        return min(found)

    return find


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def instances(**serve: Any) -> Injection:
    """Two instances of one rank, each on a node of its own; lost requests make no measurement invalid."""

    @contextmanager
    def prepare(scene: Scene) -> Iterator[None]:
        scene.sections["serve"] |= {"instances": 2, "placement": "spread", "nodes": 2, **serve}
        scene.sections["companion"]["benchmark"]["max_error_share"] = 1.0
        yield

    return prepare


def instance(scene: Scene) -> int:
    """The tritonserver of the instance on the second node."""
    return server_process(scene.site.sandbox.nodes[1])


def trtllm_serve(**serve: Any) -> Injection:
    """Two ranks that a stand-in of ``trtllm-serve`` and its launcher serve."""

    @contextmanager
    def prepare(scene: Scene) -> Iterator[None]:
        profile = json.loads(scene.person.profile.read_text())
        lines = [f"{key}: {json.dumps(value)}" for key, value in profile.items()]
        scene.person.profile.write_text("\n".join(lines))
        requests = scene.sections["companion"]["benchmark"]["requests"]
        request = {"prompt": "hello", "max_tokens": 4}
        scene.sections = {
            "repository": {},
            "engine": {"backend": "pytorch", "tensor_parallel": 2, "max_input_len": None},
            "serve": {"nodes": 2, "ready_timeout_seconds": 120, **serve},
            "companion": {"request": request, "benchmark": {**SMALL, "requests": requests}},
        }
        tokenizer = next(scene.site.engines[1].rglob("tokenizer"))
        with upstream_site(scene.person, tokenizer, "1.2.0", {}) as made:
            add_llm_api(made.container)
            scene.person = made
            yield

    return prepare


PHASES = {
    "mode": "disaggregated",
    "placement": "spread",
    "disaggregated": {"context": {"tensor_parallel": 1}, "generation": {"servers": 1}},
}


@contextmanager
def too_many_gpus(scene: Scene) -> Iterator[None]:
    """Eight instances on one node need more GPUs than it has, which the profile denies."""
    scene.sections["serve"] |= {"instances": 8, "nodes": 1}
    scene.words += ["--set", "cluster.gpus_per_node=8"]
    yield


@contextmanager
def overlapping(scene: Scene) -> Iterator[None]:
    """The companion is a step of the server's job."""
    scene.words += ["--set", "cluster.companion=overlap"]
    yield


@contextmanager
def unwritable_runs(scene: Scene) -> Iterator[None]:
    """The folder of runs is not writable."""
    scene.runs.mkdir(mode=0o555)
    shutil.chown(scene.runs, USER.pw_uid, USER.pw_gid)
    yield
