"""Modes of serving: what a person can get wrong about them is told with its place."""

from __future__ import annotations

import pytest

from tests.config.files import CLUSTER, JOB, Folder

NODE = CLUSTER + "gpus_per_node: 4\ncontainer: {tensorrt_llm_version: 0.16.0}\n"
BASE = (
    JOB
    + "model: {path: /models/llama, family: llama}\nengine:\n  backend: tensorrtllm\n  tensor_parallel: 2\n"
)
COPIES = "serve: {mode: orchestrator}\nrepository:\n  models:\n"
ONE = "  - {name: tensorrt_llm, gpu_device_ids: [0, 1]}\n"
TWO = "  - {name: tensorrt_llm_2, gpu_device_ids: [2, 3]}\n"
PHASES = "serve:\n  mode: disaggregated\n  disaggregated:\n"
CONTEXT = "    context: {instances: [[0, 1]]}\n"
GENERATION = "    generation: {instances: [[2, 3]]}\n"


@pytest.mark.parametrize("job", [COPIES + ONE + TWO, PHASES + CONTEXT + GENERATION])
def test_two_engines_on_four_gpus_are_accepted(files: Folder, job: str) -> None:
    assert files.load(BASE + job, NODE).job.engine.tensor_parallel == 2


@pytest.mark.parametrize(
    ("job", "code", "field", "words"),
    [
        ("serve: {mode: orchestrator}\n", "missing", "repository.models", "empty"),
        ("repository:\n  models:\n" + ONE, "conflict", "repository.models", "one model"),
        ("serve: {mode: disaggregated}\n", "missing", "serve.disaggregated", "both phases"),
        ("serve:\n  disaggregated:\n" + CONTEXT + GENERATION, "conflict", "serve.disaggregated", "leader"),
        (COPIES + ONE + "  - {name: b, gpu_device_ids: [2]}\n", "conflict",
         "repository.models[1].gpu_device_ids", "1 GPUs for an engine of 2 ranks"),
        (COPIES + ONE + "  - {name: b, gpu_device_ids: [1, 2]}\n", "conflict",
         "repository.models[1].gpu_device_ids", "GPU 1 is already taken"),
        (COPIES + ONE + "  - {name: tensorrt_llm, gpu_device_ids: [2, 3]}\n", "conflict",
         "repository.models[1].name", "already"),
        (PHASES + CONTEXT + "    generation: {instances: [[3, 4]]}\n", "conflict",
         "serve.disaggregated.generation.instances[0]", "has no GPU 4"),
        (PHASES + CONTEXT + "    generation: {instances: [[2]], tensor_parallel: 2}\n", "conflict",
         "serve.disaggregated.generation.instances[0]", "1 GPUs for an engine of 2 ranks"),
        (PHASES + CONTEXT + "    generation: {instances: [[2]], engine: /e, max_batch_size: 2}\n", "conflict",
         "serve.disaggregated.generation.max_batch_size", "finished engine"),
        (PHASES + "    context: {engine: /c, instances: [[0], [1, 2]]}\n    generation: "
         "{engine: /e, instances: [[3]]}\n", "conflict",
         "serve.disaggregated.context.instances[1]", "2 GPUs for an engine of 1 rank"),
        (PHASES + CONTEXT + "    generation: {instances: []}\n", "missing",
         "serve.disaggregated", "GPUs of both phases"),
        (PHASES + CONTEXT + "    generation: {instances: [[2, 3]], servers: 2}\n", "conflict",
         "serve.disaggregated.generation.servers", "with Triton"),
        (COPIES.replace("orchestrator", "orchestrator, nodes: 2") + ONE, "conflict", "serve.nodes",
         "one node"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(files: Folder, job: str, code: str, field: str, words: str) -> None:
    diagnostic = files.diagnostic(BASE + job, NODE)
    assert (diagnostic.code, diagnostic.field) == (code, field)
    assert words in diagnostic.message and diagnostic.hint


def test_a_mistake_elsewhere_does_not_hide_what_is_wrong_with_a_copy(files: Folder) -> None:
    """Rules read the copies of a job file that is wrong in another place, and in another copy."""
    wrong = "  - {name: b, gpu_device_ids: [2]}\n  - {name: c, gpu_device_ids: none}\n"
    found = files.diagnostics(BASE + "nmae: x\n" + COPIES + ONE + wrong, NODE)
    places = {"nmae", "repository.models[1].gpu_device_ids", "repository.models[2].gpu_device_ids"}
    assert {diagnostic.field for diagnostic in found} == places


def test_the_reference_backend_serves_in_leader_mode_only(files: Folder) -> None:
    diagnostic = files.diagnostic(
        JOB + "engine: {tensor_parallel: 2}\n" + COPIES + ONE, CLUSTER + "gpus_per_node: 4\n"
    )
    assert diagnostic.field == "serve.mode" and "reference" in diagnostic.message


def test_a_release_without_the_mode_is_named(files: Folder) -> None:
    diagnostic = files.diagnostic(BASE + PHASES + CONTEXT + GENERATION, NODE.replace("0.16.0", "0.12.0"))
    assert diagnostic.field == "serve.mode" and "0.15.0" in diagnostic.message


def test_nodes_of_each_phase_are_not_counted_together(files: Folder) -> None:
    job = SERVERS + "    generation: {servers: 2}\n  nodes: 2\n"
    apart = "phases: {context: {partition: a}, generation: {gpus_per_node: 2}}\n"
    diagnostic = files.diagnostic(job, NEWER + apart)
    assert diagnostic.field == "serve.nodes" and "take 3 nodes, some for each phase" in diagnostic.message
    assert files.load(job, NEWER).job.serve.nodes == 2


def test_a_type_of_gpus_without_gpus(files: Folder) -> None:
    profile = NEWER.replace("gpus_per_node", "# gpus_per_node") + "gpus_per_node: 0\n"
    job = SERVERS + "    generation: {servers: 2}\n"
    phases = "phases: {context: {gpu_type: a100}, generation: {gpus_per_node: 4, gpu_type: h100}}\n"
    diagnostic = files.diagnostic(job, profile + phases)
    assert (diagnostic.field, diagnostic.value) == ("phases.context.gpu_type", "a100")


def test_phases_of_nodes_are_for_slurm(files: Folder) -> None:
    diagnostic = files.diagnostic(JOB, CLUSTER + "scheduler: local\nphases: {context: {partition: a}}\n")
    assert (diagnostic.field, diagnostic.message) == ("phases", "is for Slurm, but scheduler is local")


SERVERS = (
    JOB
    + "model: {path: /models/llama}\nengine: {backend: pytorch, tensor_parallel: 2}\n"
    + "serve:\n  mode: disaggregated\n  disaggregated:\n"
)
NEWER = CLUSTER + "gpus_per_node: 4\ncontainer: {tensorrt_llm_version: 1.2.0}\n"


@pytest.mark.parametrize(
    ("line", "code", "key", "words", "hint"),
    [
        ("context: {servrs: 2}", "unknown-key", "context.servrs", "is not a known key", "servers"),
        ("kv_transfr: UCX", "unknown-key", "kv_transfr", "is not a known key", "kv_transfer"),
        ("generation: {llm_api: {kv_cache_confg: {dtype: fp8}}}", "unknown-key",
         "generation.llm_api.kv_cache_confg", "TensorRT-LLM 1.2.0", "write kv_cache_config"),
        ("context: {llm_api: {tensor_parallel_size: 4}}", "conflict",
         "context.llm_api.tensor_parallel_size", "by which ranks, GPUs and mounts are planned",
         "set serve.disaggregated.context.tensor_parallel instead"),
        ("generation: {llm_api: {pipeline_parallel_size: 2}}", "conflict",
         "generation.llm_api.pipeline_parallel_size", "is what serve.disaggregated.generation.",
         "set serve.disaggregated.generation.pipeline_parallel instead"),
        ("generation: {llm_api: {tokenizer: /t}}", "conflict", "generation.llm_api.tokenizer",
         "is what repository.tokenizer says", "set repository.tokenizer instead"),
        ("context: {instances: [[0, 1]]}", "conflict", "context.instances", "with trtllm-serve", "remove it"),
        ("generation: {engine: /e}", "conflict", "generation.engine", "with trtllm-serve", "remove it"),
    ],
)  # fmt: skip
def test_keys_that_a_phase_of_servers_does_not_have(
    files: Folder, line: str, code: str, key: str, words: str, hint: str
) -> None:
    diagnostic = files.diagnostic(f"{SERVERS}    {line}\n", NEWER)
    assert (diagnostic.code, diagnostic.field) == (code, f"serve.disaggregated.{key}")
    assert words in diagnostic.message and hint in (diagnostic.hint or "")


@pytest.mark.parametrize(
    ("job", "key"),
    [
        (PHASES + CONTEXT.replace("]]", "]], tensor_parallel: 1") + GENERATION, "context.tensor_parallel"),
        (PHASES + CONTEXT + GENERATION.replace("]]", "]], moe_expert_parallel: 2"),
         "generation.moe_expert_parallel"),
        (PHASES + CONTEXT + GENERATION + "    router: round_robin\n", "router"),
        (PHASES + CONTEXT + GENERATION + "    kv_transfer: UCX\n", "kv_transfer"),
    ],
)  # fmt: skip
def test_keys_that_a_phase_of_copies_does_not_have(files: Folder, job: str, key: str) -> None:
    diagnostic = files.diagnostic(BASE + job, NODE)
    assert (diagnostic.code, diagnostic.field) == ("conflict", f"serve.disaggregated.{key}")
    assert "has no effect" in diagnostic.message and "with Triton" in diagnostic.message


def test_what_a_phase_has_of_its_own_is_accepted(files: Folder) -> None:
    own = "{servers: 2, tensor_parallel: 1, max_num_tokens: 4096, llm_api: {enable_attention_dp: true}}"
    job = files.load(f"{SERVERS}    context: {own}\n    kv_transfer: UCX\n", NEWER).job
    assert job.with_phase(job.serve.disaggregated.context).engine.world_size == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("lines", "version", "key", "words", "hint"),
    [
        ("kv_transfer: MPI", "1.2.1", "kv_transfer", "each server has a world of its own", "take UCX, NIXL"),
        ("kv_transfer: MPI", "1.9.0", "kv_transfer", "each server has a world of its own", "take UCX, NIXL"),
        ("context: {llm_api: {enable_chunked_prefill: true}}", "1.2.1", "kv_transfer_tokens",
         "NIXL fails here on prompts longer than its buffer", "the longest prompt"),
    ],
)  # fmt: skip
def test_a_way_of_the_kv_cache_that_cannot_work(
    files: Folder, lines: str, version: str, key: str, words: str, hint: str
) -> None:
    profile = NEWER.replace("tensorrt_llm_version: 1.2.0", f"tensorrt_llm_version: {version}")
    diagnostic = files.diagnostic(f"{SERVERS}    {lines}\n", profile)
    assert diagnostic.field == f"serve.disaggregated.{key}"
    assert words in diagnostic.message and hint in (diagnostic.hint or "")


@pytest.mark.parametrize(
    ("lines", "version"),
    [
        ("kv_transfer_tokens: 1000", "1.2.1"),
        ("context: {llm_api: {enable_chunked_prefill: true}, max_seq_len: 4096}", "1.2.1"),
        # Upstream itself makes the buffer as large as max_seq_len from 1.3.0rc3 on.
        ("context: {llm_api: {enable_chunked_prefill: true}}", "1.3.0rc3"),
        ("context: {llm_api: {enable_chunked_prefill: true}}\n    kv_transfer: UCX", "1.2.1"),
    ],
)
def test_a_way_of_the_kv_cache_that_works(files: Folder, lines: str, version: str) -> None:
    profile = NEWER.replace("tensorrt_llm_version: 1.2.0", f"tensorrt_llm_version: {version}")
    files.load(f"{SERVERS}    {lines}\n", profile)
