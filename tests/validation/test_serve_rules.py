"""Modes of serving: what a person can get wrong about them is told with its place."""

from __future__ import annotations

import pytest

from tests.config.files import CLUSTER, JOB, Folder
from trtllm_hpc.plan.mounts import named_folders

NODE = CLUSTER + "gpus_per_node: 4\ncontainer: {tensorrt_llm_version: 0.16.0}\n"
BASE = (
    JOB
    + "model: {path: /models/llama, family: llama}\nengine:\n  backend: tensorrtllm\n  tensor_parallel: 2\n"
)
COPIES = "serve: {mode: orchestrator}\nrepository:\n  models:\n"
ONE = "  - {name: tensorrt_llm, gpu_device_ids: [0, 1]}\n"


def test_a_mistake_elsewhere_does_not_hide_what_is_wrong_with_a_copy(files: Folder) -> None:
    """Rules read the copies of a job file that is wrong in another place, and in another copy."""
    wrong = "  - {name: b, gpu_device_ids: [2]}\n  - {name: c, gpu_device_ids: none}\n"
    found = files.diagnostics(BASE + "nmae: x\n" + COPIES + ONE + wrong, NODE)
    places = {"nmae", "repository.models[1].gpu_device_ids", "repository.models[2].gpu_device_ids"}
    assert {diagnostic.field for diagnostic in found} == places


SERVERS = (
    JOB
    + "model: {path: /models/llama}\nengine: {backend: pytorch, tensor_parallel: 2}\n"
    + "serve:\n  mode: disaggregated\n  disaggregated:\n"
)
NEWER = CLUSTER + "gpus_per_node: 4\ncontainer: {tensorrt_llm_version: 1.2.0}\n"


@pytest.mark.parametrize(
    ("profile", "engine", "words"),
    [
        (NEWER, "backend: pytorch", "names no folder on the nodes' own disks"),
        (NEWER + "node_models_folder: /local\n", "backend: reference", "what the build stage makes of it"),
    ],
)
def test_what_cannot_be_staged(files: Folder, profile: str, engine: str, words: str) -> None:
    job = f"name: staged\nmodel: {{path: /models/llama, stage: node}}\nengine: {{{engine}}}\n"
    diagnostic = files.diagnostic(job, profile)
    assert diagnostic.field == "model.stage" and words in diagnostic.message


def test_drafts_of_each_phase_are_mounted_and_a_word_is_no_draft(files: Folder) -> None:
    draft = "{speculative_config: {decoding_type: Eagle, max_draft_len: 3, speculative_model_dir: /models/d}}"
    phase = f"{SERVERS}    generation: {{llm_api: {draft}}}\n    kv_transfer: UCX\n"
    found = dict(named_folders(files.load(phase, NEWER).job))
    assert found["engine.llm_api.speculative_config"] == "/models/d"
    job = "model: {path: /models/llama}\nengine: {backend: pytorch, llm_api: {speculative_config: eagle3}}\n"
    assert [*named_folders(files.load(JOB + job, NEWER).job)] == [("model.path", "/models/llama")]


@pytest.mark.parametrize(
    ("engine", "profile", "key", "words"),
    [
        ("backend: pytorch", "{iterations: 20-10}", "iterations", "before it begins"),
        ("backend: pytorch", "{ranks: [0, 1]}", "ranks", "there is no rank 1"),
        ("backend: pytorch", "{iterations: all}", "iterations", ""),
        ("backend: reference", "{}", "tool", "does not start and stop the profiler nsys"),
        ("backend: tensorrtllm", "{tool: torch}", "tool", "does not start and stop the profiler torch"),
    ],
)
def test_profiles_that_cannot_be_made(files: Folder, engine: str, profile: str, key: str, words: str) -> None:
    model = "model: {path: /models/llama, family: llama}" if "reference" not in engine else ""
    job = f"{JOB}{model}\nengine: {{{engine}, dtype: float16}}\nserve: {{profile: {profile}}}\n"
    found = {it.field: it.message for it in files.diagnostics(job, NEWER)}
    assert words in found[f"serve.profile.{key}"]


def test_profiled_ranks_are_of_the_largest_server(files: Folder) -> None:
    job = (
        f"{SERVERS}    kv_transfer: UCX\n    generation: {{tensor_parallel: 4}}\n  profile: {{ranks: [%d]}}\n"
    )
    assert files.load(job % 3, NEWER).job.serve.profile
    found = files.diagnostic(job % 4, NEWER)
    assert (found.field, found.hint) == ("serve.profile.ranks", "take numbers from 0 to 3")


@pytest.mark.parametrize(
    ("engine", "version", "code", "words"),
    [
        ("backend: pytorch", "1.1.0", "release", "has no --otlp_traces_endpoint"),
        ("backend: command", "1.2.0", "conflict", "the server's own options"),
        ("backend: pytorch", "1.2.0", None, ""),
    ],
)
def test_traces_by_release(files: Folder, engine: str, version: str, code: str | None, words: str) -> None:
    command = 'command: [vllm, serve, --port, "{port}"], ' if "command" in engine else ""
    serve = f"serve: {{{command}tracing: {{endpoint: http://here:4317}}}}"
    job = f"{JOB}model: {{path: /models/llama}}\nengine: {{{engine}}}\n{serve}\n"
    if code is None:
        assert files.load(job, NEWER).job.serve.tracing is not None
        return
    found = files.diagnostic(job, NEWER.replace("1.2.0", version))
    assert (found.code, found.field) == (code, "serve.tracing") and words in found.message
