"""What a job file of TensorRT-LLM gets wrong for its release: found before the queue, with file and line."""

from __future__ import annotations

import json

import pytest

from tests.config.files import CLUSTER, JOB, Folder
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.resolve import make_plan
from trtllm_hpc.tensorrt_llm.releases import releases

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
        (trt("0.18.2", backend="pytorch"), "release", "job:4 engine.backend", "no backend pytorch"),
        (trt("0.9.0", backend="python"), "release", "job:4 engine.backend", "0.9.0 has no backend python"),
        # The model.
        (trt("0.16.0", model="model: {synthetic: tiny-llama}\n"), "missing", "job:2 model.path",
         "needs a model's folder"),
        (trt("0.16.0", model="model: {path: /nowhere}\n"), "unreadable", "job:2 model.path",
         "/nowhere/config.json cannot be read here"),
        (trt("0.16.0", model="model: {path: /models/x, family: lama}\n"), "release", "job:2 model.family",
         "has no convert_checkpoint.py for lama"),
        (trt("0.16.0", "  plugins: {gem: auto}\n"), "release", "job:6 engine.plugins.gem",
         "no release that is known here does"),
        # Keys and releases.
        (trt("0.9.0", "  context_parallel: 2\n"), "release", "job:6 engine.context_parallel", "since 0.16.0"),
        (trt("0.12.0", "  multi_block_mode: true\n"), "release", "job:6 engine.multi_block_mode",
         "until 0.11.0, 0.12.0 dropped it"),
        (trt("0.8.0", "  inflight_batching: true\n"), "release", "job:6 engine.inflight_batching",
         "until 0.7.1, its last release"),
        (trt("0.11.0", "  plugins:\n    fp8_rowwise_gemm: auto\n"), "release",
         "job:7 engine.plugins.fp8_rowwise_gemm", "since 0.12.0"),
        (trt("0.9.0", "  plugins:\n    gemm: fp8\n"), "release", "job:7 engine.plugins.gemm",
         "takes float16, float32, bfloat16, disable"),
        # Keys and each other.
        (trt("0.16.0", "  tensor_parallel: 8\n  moe_tensor_parallel: 2\n  moe_expert_parallel: 2\n"),
         "conflict", "job:7 engine.moe_tensor_parallel", "is 4, not tensor_parallel"),
        (trt("0.16.0", "  tensor_parallel: 8\n  moe_expert_parallel: 3\n"), "conflict",
         "job:7 engine.moe_expert_parallel", "does not divide"),
        (trt("0.16.0", "  kv_cache: continuous\n"), "conflict", "job:6 engine.kv_cache",
         "inflight_fused_batching"),
        (trt("0.16.0", "  remove_input_padding: false\n"), "conflict", "job:6 engine.remove_input_padding",
         "inflight_fused_batching"),
        (trt("0.16.0", "repository:\n  kv_cache_reuse: true\n"), "conflict",
         "job:7 repository.kv_cache_reuse", "over the paged KV cache"),
        (trt("0.16.0", "repository:\n  chunked_context: true\n"), "conflict",
         "job:7 repository.chunked_context", "over the paged KV cache"),
        (trt("0.16.0", "repository:\n  decoding_mode: medusa\n"), "conflict",
         "job:7 repository.decoding_mode", "built for it"),
        (trt("0.16.0", "repository:\n  gpu_weights_percent: 0.5\n"), "conflict",
         "job:7 repository.gpu_weights_percent", "built for it"),
        (trt("0.7.1"), "conflict", "job:1 repository.batching_strategy", "build.py of 0.7.1"),
        (trt("0.16.0", "  max_lora_rank: 8\n"), "missing", "job:3 engine.lora.target_modules",
         "max_lora_rank"),
        (trt("0.16.0", "  lora:\n    target_modules: [attn_q]\n"), "conflict", "job:6 engine.lora",
         "max_lora_rank is 0"),
        (trt("0.16.0", "  max_lora_rank: 8\n  lora: {target_modules: [attn_q], adapters: [/a/x, /b/x]}\n"),
         "conflict", "job:7 engine.lora.adapters", "called x"),
        (trt("0.10.0", "companion:\n  request: {max_tokens: 2000}\n"), "conflict",
         "job:7 companion.request.max_tokens", "more than 1024"),
    ],
)  # fmt: skip
def test_a_finding(files: Folder, job: str, code: str, place: str, words: str) -> None:
    [diagnostic] = [each for each in files.diagnostics(job) if each.field == place.split()[1]]
    assert (diagnostic.code, files.place(diagnostic)) == (code, place)
    assert words in diagnostic.message and diagnostic.hint


def test_a_refusal_names_the_first_release_that_builds_the_engine(files: Folder) -> None:
    """An option of that name never was: another program does it since 0.8."""
    model = "model: {path: /models/gptj, family: gptj}\n"
    [problem] = files.diagnostics(
        trt("0.7.1", "  inflight_batching: true\n  quantization: {method: int8_sq}\n", model)
    )
    assert problem.message == "TensorRT-LLM 0.7.1 has no option for it"
    assert (problem.hint or "").endswith("; the first release that builds this engine is 0.8.0")
    # What another key rules out everywhere is built by none.
    engine = "  inflight_batching: true\n  quantization: {method: int8_sq}\n"
    [problem] = files.diagnostics(trt("0.7.1", engine.replace("true\n", "true\n  hidden_act: gelu\n"), model))
    assert "first release" not in (problem.hint or "")


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


def test_engines_that_were_built_for_it(files: Folder) -> None:
    engine = "  weight_streaming: true\n  speculative: {mode: lookahead, max_draft_len: 83}\n"
    files.load(trt("0.16.0", engine + "repository: {decoding_mode: lookahead, gpu_weights_percent: 0.5}\n"))
    files.load(trt("0.19.0", "  kv_cache: continuous\nrepository: {batching_strategy: V1}\n"))


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
    engine = "  directory: /engines/one\nrepository: {tokenizer: /models/llama}\n"
    files.load(trt("0.16.0", engine, model=""))


@pytest.mark.parametrize("release", ["0.17.0", "1.2.1"])
def test_from_0_17_on_engines_can_reuse_the_cache_by_default(files: Folder, release: str) -> None:
    files.load(trt(release, "repository: {kv_cache_reuse: true, chunked_context: true}\n"))
    files.diagnostics(trt(release, "  paged_context_fmha: false\nrepository: {kv_cache_reuse: true}\n"))


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("kv_cache: paged", "engine.kv_cache"),
        ("plugins: {gemm: float16}", "engine.plugins"),
        ("quantization: {tool: quantize}", "engine.quantization.tool"),
        ("lora: {target_modules: [attn_q]}", "engine.lora.target_modules"),
        ("options: {build: [--strip_plan]}", "engine.options.build"),
        ("paged_context_fmha: true", "engine.paged_context_fmha"),
    ],
)
def test_keys_that_a_backend_would_lose_without_a_word(files: Folder, line: str, field: str) -> None:
    reference = files.diagnostic(f"{JOB}engine:\n  {line}\n")
    assert (reference.field, reference.line) == (field, 3) and "reference" in reference.message
    llm_api = files.diagnostics(trt("1.0.0", f"  {line}\n", backend="pytorch"))
    assert (llm_api[0].field, llm_api[0].line) == (field, 6) and "LLM API" in llm_api[0].message


def test_the_llm_api_takes_a_model_and_no_engine(files: Folder) -> None:
    engine = "  tensor_parallel: 2\n  max_batch_size: 8\n  max_num_tokens: 4096\n  dtype: bfloat16\n"
    files.load(trt("1.0.0", engine, backend="pytorch"))
    diagnostic = files.diagnostic(trt("1.0.0", "  directory: /engines/one\n", backend="pytorch"))
    assert diagnostic.field == "engine.directory"


@pytest.mark.parametrize(
    ("key", "own"),
    [
        ("model: /m", "model.path"),
        ("tokenizer: /t", "repository.tokenizer"),
        ("backend: pytorch", "engine.backend"),
        ("tensor_parallel_size: 4", "engine.tensor_parallel"),
        ("pipeline_parallel_size: 2", "engine.pipeline_parallel"),
        ("context_parallel_size: 2", "engine.context_parallel"),
    ],
)
def test_what_the_plan_decides_is_no_key_of_the_llm_api(files: Folder, key: str, own: str) -> None:
    diagnostic = files.diagnostic(trt("1.2.1", f"  llm_api: {{{key}}}\n", backend="pytorch"))
    assert diagnostic.code == "conflict"
    assert diagnostic.field == f"engine.llm_api.{key.partition(':')[0]}"
    assert diagnostic.hint == f"set {own} instead"


def test_keys_of_the_llm_api_are_those_of_the_release(files: Folder) -> None:
    right = "  llm_api: {kv_cache_config: {dtype: fp8}, cuda_graph_config: {enable_padding: true}}\n"
    files.load(trt("1.2.1", right, backend="pytorch"))
    wrong = files.diagnostic(trt("1.2.1", "  llm_api: {kv_cache_config: {dtyp: fp8}}\n", backend="pytorch"))
    assert (wrong.code, wrong.field) == ("unknown-key", "engine.llm_api.kv_cache_config.dtyp")
    assert wrong.hint == "write kv_cache_config.dtype"
    older = files.diagnostic(
        trt("0.21.0", right, backend="pytorch").replace("kv_cache_config: {dtype: fp8}, ", "")
    )
    assert older.field == "engine.llm_api.cuda_graph_config" and "came with 1.0.0" in older.message


def test_values_of_the_llm_api_are_those_that_the_server_takes(files: Folder) -> None:
    wrong = "  llm_api: {speculative_config: {decoding_type: Draft_Target, max_draft_len: 3}}\n"
    found = files.diagnostic(trt("1.2.1", wrong, backend="pytorch"))
    assert (found.code, found.field) == ("release", "engine.llm_api.speculative_config.decoding_type")
    assert "TensorRT-LLM 1.2.1" in found.message and "DraftTarget" in (found.hint or "")
    # Triton's model makes the objects in another way, and of a newer image the values are not known.
    files.load(trt("1.2.1", f"{wrong}serve: {{frontend: triton}}\n", backend="pytorch"))
    files.load(trt("1.9.0", wrong, backend="pytorch"))


@pytest.mark.parametrize(
    ("engine", "field", "hint"),
    [
        ("  max_num_tokens: 1160\n  llm_api: {enable_chunked_prefill: true}\n", "engine", "set it to 1152"),
        ("  max_num_tokens: 20\nrepository: {chunked_context: true}\n", "engine", "set it to 32"),
        ("  max_num_tokens: 96\n  llm_api: {enable_chunked_prefill: true, kv_cache_config: "
         "{tokens_per_block: 64}}\n", "engine", "set it to 64, or to another multiple of 64"),
        ("serve: {mode: disaggregated, disaggregated: {context: {max_num_tokens: 1160, llm_api: "
         "{enable_chunked_prefill: true}, max_seq_len: 4096}}}\n", "serve.disaggregated.context", "1152"),
    ],
)  # fmt: skip
def test_chunks_of_prompts_are_whole_blocks_of_the_kv_cache(
    files: Folder, engine: str, field: str, hint: str
) -> None:
    found = files.diagnostic(trt("1.2.1", engine, backend="pytorch"))
    assert (found.code, found.field) == ("conflict", f"{field}.max_num_tokens")
    assert hint in (found.hint or "")


def test_without_chunks_any_number_of_tokens_will_do(files: Folder) -> None:
    files.load(trt("1.2.1", "  max_num_tokens: 1160\n", backend="pytorch"))
    files.load(trt("1.2.1", "  llm_api: {enable_chunked_prefill: true}\n", backend="pytorch"))


@pytest.mark.parametrize(
    ("keys", "field", "hint"),
    [
        ("method: int8_sq", "method", "take one of fp8, nvfp4, int4_awq, w4a8_awq"),
        ("method: fp8, kv_cache: int8", "kv_cache", "take fp8"),
        ("kv_cache: fp8", "method", "engine.llm_api.kv_cache_config.dtype: fp8"),
        ("method: fp8, tool: quantize", "tool", "remove it"),
    ],
)
def test_a_checkpoint_is_quantized_to_what_pytorch_computes_with(
    files: Folder, keys: str, field: str, hint: str
) -> None:
    diagnostic = files.diagnostic(trt("1.2.1", f"  quantization: {{{keys}}}\n", backend="pytorch"))
    assert diagnostic.field == f"engine.quantization.{field}" and hint in (diagnostic.hint or "")
    files.load(trt("1.2.1", "  quantization: {method: nvfp4, batch_size: 4}\n", backend="pytorch"))


def test_keys_for_an_unknown_release_are_passed_on(files: Folder) -> None:
    keys = "  llm_api: {a_key_of_tomorrow: true, telemetry_config: {disabled: true}}\n"
    plan = make_plan(files.load(trt("1.9.0", keys, backend="pytorch")), RunPaths("/runs/one"), "python3")
    [note] = [note for note in plan.notes if "passed on as written" in note]
    assert "engine.llm_api.a_key_of_tomorrow" in note and "telemetry_config" not in note
    assert plan.server.configuration is not None and "a_key_of_tomorrow: true" in plan.server.configuration


def test_a_job_of_the_reference_backend_reads_nothing_of_releases(
    files: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    for module in ("commands", "families", "placeholders", "release"):
        monkeypatch.setattr(f"trtllm_hpc.tensorrt_llm.releases.{module}.read_data", refuse)
    files.load()


def test_a_wrong_field_keeps_no_other_diagnostic_back(files: Folder) -> None:
    found = files.diagnostics(trt("0.9.0", "  tensor_parallel: many\n  context_parallel: 2\n"))
    assert "engine.tensor_parallel" in {diagnostic.field for diagnostic in found}


@pytest.mark.parametrize(
    ("job", "hint"),
    [
        (trt("0.16.0", model="model: {path: /nowhere}\n"), "if only the nodes see it, set model.family"),
        (trt("0.16.0", model="model: {path: /models/x, family: lama}\n"), "did you mean llama?"),
        (trt("0.16.0", "  plugins: {gem: auto}\n"), "did you mean 'gemm'?"),
        (trt("0.16.0", "  plugins: {zzz: auto}\n"), "leave engine.plugins.zzz out"),
        (trt("24.12"), "its TensorRT-LLM is 0.16.0"),
    ],
)
def test_the_next_step_is_told(files: Folder, job: str, hint: str) -> None:
    assert hint in str(files.diagnostics(job.replace("24.12", "'24.12'"))[0].hint)


def test_a_profile_without_a_container_says_so(files: Folder) -> None:
    diagnostic = files.diagnostic(JOB + MODEL + "engine: {backend: tensorrtllm}\n")
    assert "the profile 'here' has no container" in diagnostic.message
    assert diagnostic.hint is not None
    assert "--set cluster.container.tensorrt_llm_version=VERSION" in diagnostic.hint
    files.load(
        JOB + MODEL + "engine: {backend: tensorrtllm}\n",
        CLUSTER,
        "cluster.container.tensorrt_llm_version=0.17",
    )
