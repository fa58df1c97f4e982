"""Whole repositories, for the releases whose templates differ most."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.runtime.model_repository.jobs import make_recipe
from tests.runtime.model_repository.upstream import RELEASES, write_all_models, write_llmapi
from trtllm_hpc.runtime.model_repository.writer import CONFIG, ModelFiles, render_models, schema, text_format

PIPELINE = {"ensemble", "preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls"}
TWO_COPIES: dict[str, dict[str, Any]] = {
    "serve": {"mode": "orchestrator"},
    "engine": {"tensor_parallel": 2},
    "repository": {
        "models": [
            {"name": "tensorrt_llm", "gpu_device_ids": [0, 1]},
            {"name": "tensorrt_llm_2", "gpu_device_ids": [2, 3]},
        ]
    },
}
TWO_PHASES: dict[str, dict[str, Any]] = {
    "serve": {
        "mode": "disaggregated",
        "disaggregated": {
            "context": {"instances": [[0, 1], [2, 3]]},
            "generation": {"instances": [[4]], "engine": "/engines/one gpu"},
        },
    }
}


def parsed(models: Mapping[str, ModelFiles]) -> dict[str, Any]:
    """The finished texts as Triton reads them; none has a placeholder left."""
    found = {}
    for name, model in models.items():
        config = str(model[CONFIG])
        assert "${" not in config
        found[name] = text_format().Parse(config, schema().ModelConfig())
        assert found[name].name == name
    return found


def parameters(message: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in message.parameters.items()}


@pytest.mark.parametrize("version", RELEASES)
def test_leader_mode(tmp_path: Path, version: str) -> None:
    all_models = write_all_models(tmp_path, version)
    recipe = make_recipe(
        version,
        kv_cache={"max_tokens": 2560},
        repository={"decoupled": True, "bls_instances": 3},
    )
    models = parsed(render_models(recipe, all_models))
    assert set(models) == PIPELINE
    assert {message.max_batch_size for message in models.values()} == {64}
    served = models["tensorrt_llm"]
    assert served.backend == "tensorrtllm"
    assert served.model_transaction_policy.decoupled
    assert list(served.dynamic_batching.preferred_batch_size) == [64]
    values = parameters(served)
    assert values["gpt_model_path"] == "/runs/one/engine"
    assert values["gpt_model_type"] == "inflight_fused_batching"
    assert values["max_tokens_in_paged_kv_cache"] == "2560"
    assert "kv_cache_free_gpu_mem_fraction" not in values  # not set: the backend's own default
    assert parameters(models["preprocessing"])["tokenizer_dir"] == "/models/a, b: c"
    assert models["tensorrt_llm_bls"].instance_group[0].count == 3
    assert parameters(models["tensorrt_llm_bls"])["tensorrt_llm_model_name"] == "tensorrt_llm"


@pytest.mark.parametrize("version", RELEASES)
def test_orchestrator_mode_has_a_pipeline_for_each_copy(tmp_path: Path, version: str) -> None:
    recipe = make_recipe(version, **TWO_COPIES)
    models = parsed(render_models(recipe, write_all_models(tmp_path, version)))
    copies = {"ensemble_2", "tensorrt_llm_2", "tensorrt_llm_bls_2"}
    assert set(models) == PIPELINE | copies
    assert parameters(models["tensorrt_llm"])["gpu_device_ids"] == "0,1"
    assert parameters(models["tensorrt_llm_2"])["gpu_device_ids"] == "2,3"
    steps = [step.model_name for step in models["ensemble_2"].ensemble_scheduling.step]
    assert steps == ["preprocessing", "tensorrt_llm_2", "postprocessing"]
    assert parameters(models["tensorrt_llm_bls_2"])["tensorrt_llm_model_name"] == "tensorrt_llm_2"


@pytest.mark.parametrize("version", [version for version in RELEASES if version not in ("0.9.0", "0.12.0")])
def test_disaggregated_mode_numbers_ranks_from_the_context_on(tmp_path: Path, version: str) -> None:
    recipe = make_recipe(version, **TWO_PHASES)
    models = parsed(render_models(recipe, write_all_models(tmp_path, version)))
    expected = {"ensemble", "preprocessing", "postprocessing", "context", "generation"}
    assert set(models) == expected | {"disaggregated_serving_bls"}
    context, generation = parameters(models["context"]), parameters(models["generation"])
    # Rank 0 is the orchestrator: two copies of two ranks, then one of one.
    assert (context["participant_ids"], context["gpu_device_ids"]) == ("1,2;3,4", "0,1;2,3")
    assert (generation["participant_ids"], generation["gpu_device_ids"]) == ("5", "4")
    assert models["context"].instance_group[0].count == 2
    assert models["generation"].instance_group[0].count == 1
    assert context["gpt_model_path"] == "/runs/one/engine"
    assert generation["gpt_model_path"] == "/engines/one gpu"
    steps = [step.model_name for step in models["ensemble"].ensemble_scheduling.step]
    assert steps == ["preprocessing", "disaggregated_serving_bls", "postprocessing"]
    values = parameters(models["disaggregated_serving_bls"])
    assert (values["context_model_name"], values["generation_model_name"]) == ("context", "generation")


@pytest.mark.parametrize("version", ["0.21.0", "1.2.0"])
def test_the_llm_api_is_configured_by_model_yaml(tmp_path: Path, version: str) -> None:
    recipe = make_recipe(
        version,
        engine={
            "backend": "pytorch",
            "tensor_parallel": 4,
            "moe_expert_parallel": 2,
            "llm_api": {"kv_cache_config": {"dtype": "fp8"}, "trust_remote_code": True},
        },
        kv_cache={"free_gpu_memory_fraction": 0.8},
        repository={"decoupled": True},
        serve={"frontend": "triton"},
    )
    model = render_models(recipe, write_llmapi(tmp_path))["tensorrt_llm"]
    assert yaml.safe_load(str(model["1/model.yaml"])) == {
        "model": "/models/a, b: c",
        "backend": "pytorch",
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 1,
        "moe_expert_parallel_size": 2,
        "max_batch_size": 64,
        "kv_cache_config": {"free_gpu_memory_fraction": 0.8, "dtype": "fp8"},
        "trust_remote_code": True,
        "triton_config": {"max_batch_size": 0, "decoupled": True},
    }
    # The server is started without auto-completion, so the configuration says it too.
    assert parsed({"tensorrt_llm": model})["tensorrt_llm"].model_transaction_policy.decoupled
    assert {path for path, file in model.items() if isinstance(file, Path)} == {"1/model.py", "1/helpers.py"}


def test_model_yaml_can_be_read_in_any_locale(tmp_path: Path) -> None:
    """Triton's stub opens it as ASCII; upstream reads it as YAML 1.1."""
    path = "/models/é \u2028 模型 \\ \" ' # : \x85 🙂"
    recipe = make_recipe(
        "1.2.0", engine={"backend": "pytorch"}, model={"path": path}, serve={"frontend": "triton"}
    )
    text = str(render_models(recipe, write_llmapi(tmp_path))["tensorrt_llm"]["1/model.yaml"])
    assert text.isascii()
    assert yaml.safe_load(text)["model"] == path
