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
