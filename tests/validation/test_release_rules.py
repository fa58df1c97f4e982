"""What a job file of TensorRT-LLM gets wrong for its release: found before the queue, with file and line."""

from __future__ import annotations

import json

import pytest

from tests.config.files import CLUSTER, JOB, Folder
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.resolve import make_plan
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
        (trt("1.3.0"), "release", "job:5 engine.tensorrt_llm_version", "1.3.0"),
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


def test_a_wrong_value_elsewhere_hides_no_refusal(files: Folder) -> None:
    model = "model: {path: /models/m, family: mixtral}\n"
    found = files.diagnostics(
        trt("0.5.0", "  max_batch_size: many\n  quantization: {method: nvfp4}\n", model)
    )
    assert {"engine.max_batch_size", "model.family"} <= {problem.field for problem in found}


def test_everything_comes_at_once_and_each_key_once(files: Folder) -> None:
    engine = "  reduce_fusion: true\n  fused_mlp: true\n  opt_num_tokens: 64\n  plugins: {moe: auto}\n"
    found = files.diagnostics(trt("0.5.0", engine + "  inflight_batching: true\n"))
    assert [diagnostic.field.rpartition(".")[2] for diagnostic in found] == [
        "opt_num_tokens", "fused_mlp", "reduce_fusion", "moe",
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


def test_an_image_of_another_release_than_the_job_s(files: Folder) -> None:
    image = "nvcr.io#nvidia/tritonserver:24.12-trtllm-python-py3"
    cluster = f"{CLUSTER}container: {{runtime: pyxis, image: '{image}'}}\n"
    diagnostic = files.diagnostic(trt("0.11.0"), cluster)
    assert "0.16.0" in diagnostic.message and "0.11.0" in diagnostic.message


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


def test_a_release_that_no_container_carries_leaves_the_tag_open(files: Folder) -> None:
    diagnostic = files.diagnostic(trt("0.18.1"), CLUSTER + TAG_IN_IMAGE)
    assert diagnostic.field == "engine.tensorrt_llm_version"
    assert "no public container of Triton carries TensorRT-LLM 0.18.1" in diagnostic.message
    assert "--set cluster.container.image=" in (diagnostic.hint or "")


def test_a_tag_that_follows_the_job_and_a_release_that_the_profile_states_are_refused(files: Folder) -> None:
    cluster = CLUSTER + TAG_IN_IMAGE + "  tensorrt_llm_version: 0.16.0\n"
    diagnostic = files.diagnostic(JOB, cluster)
    assert (diagnostic.code, files.place(diagnostic)) == (
        "conflict",
        "cluster:5 container.tensorrt_llm_version",
    )


def test_a_profile_that_states_another_release_than_the_job(files: Folder) -> None:
    cluster = CLUSTER + "container: {tensorrt_llm_version: 0.17.0}\n"
    diagnostic = files.diagnostic(trt("0.16.0"), cluster)
    assert diagnostic.field == "engine.tensorrt_llm_version"
    assert "0.16.0" in diagnostic.message and "0.17.0" in diagnostic.message
    files.load(trt("v0.17.0"), cluster)


def test_the_image_alone_tells_it(files: Folder) -> None:
    cluster = f"{CLUSTER}container: {{runtime: apptainer, image: tritonserver_24.07-trtllm-python-py3.sif}}\n"
    diagnostic = files.diagnostic(
        JOB + MODEL + "engine: {backend: tensorrtllm, context_parallel: 2}\n", cluster
    )
    assert "0.11.0" in diagnostic.message


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


def test_a_finished_engine_needs_nothing_of_that(files: Folder) -> None:
    engine = "  directory: /engines/one\n"
    files.load(trt("0.16.0", engine, model="model: {tokenizer: /models/llama}\n"))


def test_keys_for_an_unknown_release_are_passed_on(files: Folder) -> None:
    keys = "  llm_api: {a_key_of_tomorrow: true, telemetry_config: {disabled: true}}\n"
    plan = make_plan(files.load(trt("1.9.0", keys, backend="pytorch")), RunPaths("/runs/one"), "python3")
    assert "options and keys are assumed to be those of" in plan.notes[0]
    assert json.loads(plan.server.configuration or "")["a_key_of_tomorrow"] is True


def test_a_job_of_the_reference_backend_reads_nothing_of_releases(
    files: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    for module in ("commands", "families", "placeholders", "release"):
        monkeypatch.setattr(f"trtllm_hpc.tensorrt_llm.releases.{module}.read_data", refuse)
    files.load()


@pytest.mark.parametrize(
    ("job", "hint"),
    [
        (trt("0.16.0", model="model: {path: /nowhere}\n"), "if only the nodes see it, set model.family"),
        (trt("24.12"), "its TensorRT-LLM is 0.16.0"),
    ],
)
def test_the_next_step_is_told(files: Folder, job: str, hint: str) -> None:
    assert hint in str(files.diagnostics(job.replace("24.12", "'24.12'"))[0].hint)


def test_a_profile_without_a_container_says_so(files: Folder) -> None:
    diagnostic = files.diagnostic(JOB + MODEL + "engine: {backend: tensorrtllm}\n")
    assert "without a container image the version of TensorRT-LLM must be stated" in diagnostic.message
    files.load(
        JOB + MODEL + "engine: {backend: tensorrtllm}\n",
        CLUSTER,
        "cluster.container.tensorrt_llm_version=0.17",
    )
