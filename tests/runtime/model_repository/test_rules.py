"""Keys of the job file that the release does not have are reported with their position."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.config.files import CLUSTER, JOB, Folder

BASE = JOB + "model: {path: /models/llama, family: llama}\n"


@pytest.fixture
def files(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def job(version: str, repository: str) -> str:
    engine = f"engine: {{backend: tensorrtllm, tensorrt_llm_version: {version}}}\n"
    return BASE + engine + f"repository: {repository}\n"


def path_in(repository: str) -> str:
    """The dotted path of the only key in it."""
    value, path = yaml.safe_load(repository), "repository"
    while isinstance(value, dict) and value:
        [(key, value)] = value.items()
        path = f"{path}.{key}"
    return path


@pytest.mark.parametrize(
    ("version", "repository", "message"),
    [
        ("0.9.0", "{max_queue_size: 5}", "0.9.0 has no max_queue_size, which came with 0.12.0"),
        ("0.8.0", "{decoding_mode: top_k}", "0.8.0 has no decoding_mode, which came with 0.9.0"),
        ("0.16.0", "{enable_trt_overlap: true}", "has no enable_trt_overlap"),
        ("0.14.0", "{decoding_mode: eagle}", "must be one of top_k, top_p"),
        ("0.20.0", "{batching_strategy: V1}", "must be one of inflight_batching"),
        ("0.16.0", "{logits_datatype: TYPE_FP16}", "which came with 0.17.0"),
        (
            "0.16.0",
            "{parameters: {tensorrt_llm: {lookahead_window_size: 4}}}",
            "0.16.0 has no lookahead_window_size, which came with 0.19.0",
        ),
        (
            "0.16.0",
            "{parameters: {tensorrt_llm: {lora_cache_max_adapter: 4}}}",
            "is not a placeholder of tensorrt_llm",
        ),
        (
            "0.16.0",
            "{parameters: {tensorrt_llm: {lora_cache_max_adapter_size: lots}}}",
            "must be a whole number",
        ),
        ("0.16.0", "{parameters: {tensorrt_llm: {engine_dir: /e}}}", "is set by engine.directory"),
        ("0.16.0", "{parameters: {tensorrtllm: {}}}", "not a model of the repository"),
    ],
)
def test_what_the_release_does_not_have(files: Folder, version: str, repository: str, message: str) -> None:
    diagnostics = files.diagnostics(job(version, repository), CLUSTER)
    here = [diagnostic for diagnostic in diagnostics if diagnostic.field == path_in(repository)]
    assert len(here) == 1, "\n".join(map(str, diagnostics))
    assert message in here[0].message
    assert here[0].line and here[0].hint


def test_a_tokenizer_is_named(files: Folder) -> None:
    text = JOB + "engine: {backend: tensorrtllm, tensorrt_llm_version: 0.16.0, directory: /engines/x}\n"
    found = {
        diagnostic.field for diagnostic in files.diagnostics(text + "model: {synthetic: null}\n", CLUSTER)
    }
    assert "model.tokenizer" in found
    named = text + "model: {synthetic: null, tokenizer: /models/t}\n"
    assert files.load(named, CLUSTER).job.model.tokenizer == "/models/t"
