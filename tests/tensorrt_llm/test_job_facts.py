"""Which release a job is for: a known one, or, for the LLM API on PyTorch, one that is most like it."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_hpc.backends import facts_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.releases.release import nearest_release, releases, version_of_image

NEWEST = releases()[-1].version
UPSTREAM = "nvcr.io/nvidia/tensorrt-llm/release"
TRITON = "nvcr.io/nvidia/tritonserver:{}-trtllm-python-py3"


def facts(backend: str, image: str | None, stated: str | None = None) -> JobFacts:
    engine = {"backend": backend, "tensorrt_llm_version": stated}
    job: dict[str, Any] = {"name": "demo", "model": {"path": "/m", "synthetic": None}, "engine": engine}
    container = {} if image is None else {"runtime": "pyxis", "image": image}
    profile = ClusterProfile.model_validate({"name": "here", "container": container})
    return facts_of(JobFile.model_validate(job), profile)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        (f"{UPSTREAM}:1.2.0", "1.2.0"),
        (f"{UPSTREAM}:1.3.0rc2", "1.3.0rc2"),
        ("nvcr.io#nvidia/tensorrt-llm/release:v1.2.0.post1", "1.2.0.post1"),
        ("/images/nvidia+tensorrt-llm+release+1.2.0rc6.sqsh", "1.2.0rc6"),
        (f"{UPSTREAM}:latest", None),
        (TRITON.format("24.12"), None),
        ("nvcr.io/nvidia/pytorch:25.10-py3", None),
    ],
)
def test_the_version_in_the_name_of_upstreams_image(image: str, version: str | None) -> None:
    assert version_of_image(image) == version


@pytest.mark.parametrize(
    ("version", "nearest"),
    [
        (None, NEWEST),
        ("9.9", NEWEST),
        ("1.0.7", "1.0.3.2510"),
        ("1.2.0rc6", "1.1.0"),
        # The first with this backend, where there is none before.
        ("0.15.0", "0.19.0"),
        ("of my own", NEWEST),
    ],
)
def test_the_nearest_release_is_the_newest_one_before(version: str | None, nearest: str) -> None:
    assert nearest_release(version).version == nearest


@pytest.mark.parametrize(
    ("image", "stated", "release"),
    [
        (f"{UPSTREAM}:9.0.0", None, NEWEST),
        (f"{UPSTREAM}:1.2.0rc6", None, "1.1.0"),
        (TRITON.format("27.01"), None, NEWEST),
        ("/images/ours.sqsh", None, NEWEST),
        ("/images/ours.sqsh", "1.0.7", "1.0.3.2510"),
    ],
)
def test_facts_of_an_unknown_release_are_assumed_for_pytorch_only(
    image: str, stated: str | None, release: str
) -> None:
    found = facts("pytorch", image, stated)
    assert found.release is not None and found.release.version == release
    assert found.assumed_release is not None and found.unknown_release is None
    engine = facts("tensorrtllm", image, stated)
    assert (engine.release, engine.assumed_release) == (None, None)
    assert str(engine.unknown_release) == str(found.assumed_release)


def test_an_image_whose_tag_the_job_decides_is_not_assumed() -> None:
    found = facts("pytorch", TRITON.format("{tag}"), "9.9.9")
    assert (found.release, found.assumed_release) == (None, None) and found.unknown_release is not None
