"""What becomes of a job with an engine on the PyTorch path."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_hpc.config.files import jobs
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.tree import Source, parse
from trtllm_hpc.config.validate import validate
from trtllm_hpc.engines.migration import AlreadyMigrated, Change, migrate
from trtllm_hpc.runs.shipped_jobs import shipped_jobs
from trtllm_hpc.tensorrt_llm.releases.data_files import read_data
from trtllm_hpc.validation.load import load

HEAD = (
    "# Our chat model\nname: chat\nmodel:\n  path: /models/llama # on the fast disk\n"
    "engine:\n  backend: tensorrtllm\n"
)


def read(text: str) -> JobFile:
    tree, wrong = parse(text, Source("job.yaml", folder="/"))
    assert tree is not None and not wrong
    job, wrong = validate(JobFile, tree)
    assert job is not None, wrong
    return job


def migrated(lines: str) -> tuple[JobFile, dict[str, Change]]:
    """The new job, and what became of each key."""
    done = migrate(HEAD + lines, read(HEAD + lines))
    assert "# Our chat model" in done.text and "# on the fast disk" in done.text
    return read(done.text), {change.key: change for change in done.changes}


def test_an_engine_job_has_the_other_backend_and_keeps_what_means_the_same() -> None:
    job, changes = migrated("  tensorrt_llm_version: 0.16.0\n  tensor_parallel: 4\n  max_seq_len: 4096\n")
    assert (job.engine.backend, job.engine.tensor_parallel, job.engine.max_seq_len) == ("pytorch", 4, 4096)
    assert job.engine.tensorrt_llm_version == "1.2.1" and job.frontend == "openai"
    assert set(changes) == {"engine.backend", "engine.tensorrt_llm_version"}
    kept, _ = migrated("  tensorrt_llm_version: 1.1.0\n")
    assert kept.engine.tensorrt_llm_version == "1.1.0"


@pytest.mark.parametrize(
    ("lines", "key", "configuration"),
    [
        (
            "  quantization: {kv_cache: fp8}\n",
            "engine.quantization.kv_cache",
            {"kv_cache_config": {"dtype": "fp8"}},
        ),
        (
            "  tokens_per_block: 64\n",
            "engine.tokens_per_block",
            {"kv_cache_config": {"tokens_per_block": 64}},
        ),
        ("  max_lora_rank: 8\n", "engine.max_lora_rank", {"lora_config": {"max_lora_rank": 8}}),
        (
            "repository:\n  guided_decoding_backend: xgrammar\n",
            "repository.guided_decoding_backend",
            {"guided_decoding_backend": "xgrammar"},
        ),
    ],
)
def test_a_key_with_another_name_in_the_llm_api(
    lines: str, key: str, configuration: dict[str, object]
) -> None:
    job, changes = migrated(lines)
    assert job.engine.llm_api == configuration
    assert changes[key].kind == "changed" and (changes[key].now or "").startswith("engine.llm_api.")


@pytest.mark.parametrize(
    ("lines", "key", "instead"),
    [
        ("  quantization: {method: int8_sq}\n", "engine.quantization.method", "fp8, nvfp4"),
        ("  quantization: {kv_cache: int8}\n", "engine.quantization.kv_cache", "dtype: fp8"),
        (
            "  speculative: {mode: draft_tokens_external, max_draft_len: 4}\n",
            "engine.speculative",
            "DraftTarget",
        ),
        ("  speculative: {mode: medusa, heads: 4}\n", "engine.speculative", "EAGLE-3"),
        ("  directory: /engines/one\n", "engine.directory", "model.path"),
        ("  encoder_decoder: true\n", "engine.encoder_decoder", "26.07"),
        ("  gather_context_logits: true\n", "engine.gather_context_logits", "logprobs"),
        ("repository:\n  parameters: {tensorrt_llm: {a: 1}}\n", "repository.parameters", "engine.llm_api"),
        ("repository:\n  instances: 2\n", "repository.instances", "serve.instances"),
    ],
)
def test_what_has_no_counterpart_says_what_to_do(lines: str, key: str, instead: str) -> None:
    job, changes = migrated(lines)
    assert changes[key].kind == "lost" and instead in (changes[key].instead or "")
    assert job.engine.llm_api == {} and job.repository.model_fields_set == set()


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("  plugins: {gemm: auto}\n", "engine.plugins"),
        ("  kv_cache: paged\n", "engine.kv_cache"),
        ("  options: {build: [--strip_plan]}\n", "engine.options"),
        ("  gather_context_logits: false\n", "engine.gather_context_logits"),
        ("repository:\n  instances: 1\n", "repository.instances"),
        ("build:\n  cpus: 8\n", "build"),
        ("serve:\n  mode: leader\n", "serve.mode"),
    ],
)
def test_what_has_nothing_to_decide_is_left_out(lines: str, key: str) -> None:
    job, changes = migrated(lines)
    assert changes[key].kind == "dropped" and changes[key].why
    assert job == read(HEAD.replace("tensorrtllm", "pytorch"))


def test_a_checkpoint_is_quantized_as_the_engine_was() -> None:
    lines = "  quantization: {method: fp8_rowwise, kv_cache: int8, calibration_size: 64, per_token: true}\n"
    job, changes = migrated(f"{lines}build: {{gpus: 2}}\n")
    wanted = job.engine.quantization
    assert (wanted.method, wanted.kv_cache, wanted.calibration_size) == ("fp8", None, 64)
    assert (wanted.per_token, job.build.gpus) == (False, 2)
    kinds = {key: change.kind for key, change in changes.items() if "quantization" in key}
    assert kinds == {
        "engine.quantization.method": "changed",
        "engine.quantization.kv_cache": "lost",
        "engine.quantization.per_token": "dropped",
    }


def test_copies_of_a_model_become_servers_behind_one_door() -> None:
    copies = "[{name: a, gpu_device_ids: [0]}, {name: b, gpu_device_ids: [1]}]"
    job, changes = migrated(f"repository:\n  models: {copies}\nserve:\n  mode: orchestrator\n")
    assert (job.serve.mode, job.serve.instances, job.repository.models) == ("leader", 2, [])
    assert changes["serve.mode"].now == "serve.instances: 2"


def test_phases_on_gpus_that_are_named_become_servers() -> None:
    generation = "{instances: [[1], [2]], max_batch_size: 256, engine: /engines/two}"
    phases = f"{{context: {{instances: [[0]]}}, generation: {generation}}}"
    job, changes = migrated(f"serve:\n  mode: disaggregated\n  disaggregated: {phases}\n")
    assert job.serve.mode == "disaggregated" and job.serve.disaggregated is not None
    context, generating = job.serve.disaggregated.context, job.serve.disaggregated.generation
    assert (context.servers, context.instances, generating.servers, generating.instances) == (1, [], 2, [])
    assert (generating.max_batch_size, generating.engine) == (256, None)
    assert (
        changes["serve.disaggregated.generation.instances"].now == "serve.disaggregated.generation.servers: 2"
    )
    assert changes["serve.disaggregated.generation.engine"].kind == "lost"


@pytest.mark.parametrize("backend", ["pytorch", "reference"])
def test_a_job_without_an_engine_is_refused(backend: str) -> None:
    text = f"name: a\nengine: {{backend: {backend}}}\n"
    with pytest.raises(AlreadyMigrated, match=backend):
        migrate(text, read(text))


@pytest.mark.parametrize("name", [job.name for job in shipped_jobs() if job.backend == "tensorrtllm"])
def test_every_shipped_engine_job_loads_after_it(name: str, tmp_path: Path) -> None:
    text = jobs()[name].read_text()
    done = migrate(text, read(text))
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert [line for line in done.text.splitlines() if line.startswith("#")] == comments
    file = tmp_path / "job.yaml"
    file.write_text(done.text)
    assert load(file, "pyxis").job.engine.backend == "pytorch"


def test_the_data_name_keys_of_the_job_file() -> None:
    named = [key for rule in read_data("migration")["rule"] for key in rule["keys"]]
    assert len(named) == len(set(named))
    schema = JobFile.model_json_schema()
    for key in named:
        at = schema
        for word in key.split("."):
            choices = [at, *at.get("anyOf", ())]
            at = next(
                schema["$defs"][choice["$ref"].rpartition("/")[2]] if "$ref" in choice else choice
                for choice in choices
                if "$ref" in choice or "properties" in choice
            )
            assert word in at["properties"], key
            at = at["properties"][word]
    for rule in read_data("migration")["rule"]:
        assert len({"dropped", "lost", "becomes"} & set(rule)) == 1, rule
