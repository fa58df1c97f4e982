"""What a container sees of the nodes: everything that a job file names, once."""

from __future__ import annotations

from typing import Any

from tests.render.cases import plan_of

PYXIS = {"runtime": "pyxis", "image": "/images/tritonserver_24.12-trtllm-python-py3.sqsh"}


def mounts(engine: dict[str, Any], *given: str, model: str = "/models/llama") -> list[str]:
    job = {
        "name": "a",
        "model": {"path": model, "synthetic": None, "family": "llama"},
        "engine": {"backend": "tensorrtllm", **engine},
    }
    cluster = {"name": "b", "gpus_per_node": 1, "container": {**PYXIS, "mounts": list(given)}}
    return list(plan_of(job, cluster, "/runs/a").mounts)


OWN = ["/runs/a:/runs/a", "/engines:/engines"]


def test_what_the_job_file_names_is_mounted_to_be_read() -> None:
    lora = {"adapters": ["/loras/one", "/loras/two"], "target_modules": ["attn_q"]}
    engine = {"max_lora_rank": 8, "lora": lora}
    named = ["/models/llama", "/loras/one", "/loras/two"]
    assert mounts(engine) == [*OWN, *(f"{path}:{path}:ro" for path in named)]


def test_what_a_mount_of_the_profile_covers_is_left_to_it() -> None:
    """The job file then names the path inside the container."""
    assert mounts({}, "/scratch/ana:/models:ro") == [*OWN, "/scratch/ana:/models:ro"]
    assert mounts({}, "/models/llama") == [*OWN, "/models/llama"]
    beside = "/models/llama-2:/models/llama-2"
    assert mounts({}, beside) == [*OWN, "/models/llama:/models/llama:ro", beside]


def test_a_name_that_runtimes_take_apart_is_not_mounted_by_itself() -> None:
    assert mounts({}, model="/models/a,b") == OWN
