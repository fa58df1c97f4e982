"""What a job file of TensorRT-LLM gets wrong for its release: found before the queue, with file and line."""

from __future__ import annotations

import json

import pytest

from tests.config.files import CLUSTER, JOB, Folder
from trtllm_hpc.tensorrt_llm.releases.release import releases

MODEL = "model: {path: /models/llama, family: llama}\n"


def trt(release: str, engine: str = "", model: str = MODEL, backend: str = "tensorrtllm") -> str:
    """A job file; the engine's further lines begin at line 6."""
    head = f"engine:\n  backend: {backend}\n  tensorrt_llm_version: {release}\n"
    return JOB + model + head + engine


@pytest.mark.parametrize(
    ("job", "code", "place", "words"),
    [
        # The release.
        (trt("0.4.0"), "release", "job:5 engine.tensorrt_llm_version", "0.4.0"),
        (trt("9.0.0"), "release", "job:5 engine.tensorrt_llm_version", "9.0.0"),
        # The model.
        (trt("0.16.0", model="model: {synthetic: tiny-llama}\n"), "missing", "job:2 model.path",
         "needs a model's folder"),
        (trt("0.16.0", model="model: {path: /nowhere}\n"), "unreadable", "job:2 model.path",
         "/nowhere/config.json cannot be read here"),
    ],
)  # fmt: skip
def test_a_finding(files: Folder, job: str, code: str, place: str, words: str) -> None:
    [diagnostic] = [each for each in files.diagnostics(job) if each.field == place.split()[1]]
    assert (diagnostic.code, files.place(diagnostic)) == (code, place)
    assert words in diagnostic.message and diagnostic.hint


def test_everything_comes_at_once_and_each_key_once(files: Folder) -> None:
    engine = "  paged_context_fmha: true\n  opt_num_tokens: 64\n  plugins: {moe: auto}\n"
    found = files.diagnostics(trt("0.5.0", engine + "  inflight_batching: true\n"))
    assert [diagnostic.field.rpartition(".")[2] for diagnostic in found] == [
        "opt_num_tokens", "paged_context_fmha", "moe",
    ]  # fmt: skip
    assert all("0.5.0" in diagnostic.message for diagnostic in found)


@pytest.mark.parametrize(
    ("container", "place"),
    [
        ("container: {tensorrt_llm_version: 9.9.9}\n", "cluster:2 container.tensorrt_llm_version"),
        ("container:\n  runtime: pyxis\n  image: mine.sqsh\n", "job:3 engine.tensorrt_llm_version"),
        ("", "job:3 engine.tensorrt_llm_version"),
    ],
)
def test_a_release_that_nothing_tells(files: Folder, container: str, place: str) -> None:
    diagnostic = files.diagnostic(JOB + MODEL + "engine: {backend: tensorrtllm}\n", CLUSTER + container)
    assert (diagnostic.code, files.place(diagnostic)) == ("release", place)


TAG_IN_IMAGE = "container:\n  runtime: pyxis\n  image: '/images/mine-{tag}.sqsh'\n"


@pytest.mark.parametrize(
    ("job", "image", "version"),
    [
        (trt("0.16.0"), "/images/mine-24.12.sqsh", "0.16.0"),
        (trt("0.9.0"), "/images/mine-24.05.sqsh", "0.9.0"),  # the newest of the two that carry it
        (JOB, f"/images/mine-{releases()[-1].tags[-1]}.sqsh", releases()[-1].version),
    ],
)
def test_the_tag_in_an_image_follows_the_job_s_release(
    files: Folder, job: str, image: str, version: str
) -> None:
    container = files.load(job, CLUSTER + TAG_IN_IMAGE).cluster.container
    assert (container.image, container.tensorrt_llm_version) == (image, version)


def test_a_profile_that_states_another_release_than_the_job(files: Folder) -> None:
    cluster = CLUSTER + "container: {tensorrt_llm_version: 0.17.0}\n"
    diagnostic = files.diagnostic(trt("0.16.0"), cluster)
    assert diagnostic.field == "engine.tensorrt_llm_version"
    assert "0.16.0" in diagnostic.message and "0.17.0" in diagnostic.message
    files.load(trt("v0.17.0"), cluster)


def test_config_json_tells_the_family(files: Folder) -> None:
    folder = files.folder / "model"
    folder.mkdir()
    config = folder / "config.json"
    config.write_text(json.dumps({"architectures": ["MixtralForCausalLM"]}))
    job = trt("0.16.0", model=f"model: {{path: {folder}}}\n")
    assert files.load(job).job.model.family is None
    config.write_text(json.dumps({"architectures": ["SomethingElse"]}))
    assert "SomethingElse" in files.diagnostic(job).message
    config.write_text("[]")
    assert "cannot be read" in files.diagnostic(job).message


def test_a_profile_without_a_container_says_so(files: Folder) -> None:
    diagnostic = files.diagnostic(JOB + MODEL + "engine: {backend: tensorrtllm}\n")
    assert "without a container image the version of TensorRT-LLM must be stated" in diagnostic.message
    files.load(
        JOB + MODEL + "engine: {backend: tensorrtllm}\n",
        CLUSTER,
        "cluster.container.tensorrt_llm_version=0.17",
    )
