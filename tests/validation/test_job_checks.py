"""Checks of the job and of a finished engine: once where all is well, once where it is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tensorrt_llm.memory_models import LLAMA_3_8B, LLAMA_3_70B
from tests.validation.conftest import Checked, says, state
from tests.validation.engines import new_engine
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.paths import write_json
from trtllm_hpc.validation.context import Context

# The job -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "engine", "found", "words"),
    [
        ({}, {"tensor_parallel": 8}, "ok", "the ranks can split 32 heads and 32 layers evenly"),
        (
            {"num_attention_heads": 12},
            {"tensor_parallel": 8},
            "fail",
            "12 attention heads cannot be split over 8",
        ),
        ({"num_key_value_heads": 3}, {"tensor_parallel": 2}, "fail", "3 KV heads cannot be split over 2"),
        ({"num_key_value_heads": 2}, {"tensor_parallel": 8}, "ok", ""),
        ({"num_hidden_layers": 31}, {"pipeline_parallel": 2}, "warn", "31 layers cannot be split evenly"),
        (
            {"model_type": "mixtral", "num_local_experts": 6},
            {"tensor_parallel": 4, "moe_expert_parallel": 4, "moe_tensor_parallel": 1},
            "fail",
            "6 experts cannot be split evenly by engine.moe_expert_parallel 4",
        ),
        ({"model_type": "mamba"}, {"tensor_parallel": 2}, "unknown", "no sum for models of type 'mamba'"),
    ],
)
def test_what_cannot_be_split(
    checked: Checked, model: Path, config: dict[str, Any], engine: dict[str, Any], found: str, words: str
) -> None:
    write_json(model / "config.json", {**LLAMA_3_8B, **config})
    outcome = checked(engine=engine)["model-divides"]
    assert outcome.state == found and words in outcome.message


def test_a_model_that_is_not_whole(checked: Checked, model: Path) -> None:
    shard = model / "model-00002-of-00002.safetensors"
    shard.write_text("version https://git-lfs.github.com/spec/v1\n")
    says(checked(), "model-files", "a Git LFS pointer")
    shard.write_bytes(b"{}")
    says(checked(), "model-files", f"{shard} has only 2 bytes")
    shard.unlink()
    says(checked(), "model-files", f"the index of weights lists {shard.name}, which is missing")
    (model / "model.safetensors.index.json").unlink()
    assert state(checked(), "model-files") == "ok"  # one file without an index is a whole model
    (model / "model-00001-of-00002.safetensors").unlink()
    says(checked(), "model-files", "there are no weights")
    (model / "config.json").write_text("{")
    says(checked(), "model-files", "no readable config.json")


def test_a_number_of_layers_that_the_weights_contradict(checked: Checked, model: Path) -> None:
    index, shard = model / "model.safetensors.index.json", "model-00001-of-00002.safetensors"
    for layers in (-1, 0, "2"):
        write_json(model / "config.json", {**LLAMA_3_8B, "num_hidden_layers": layers})
        says(checked(), "model-files", f"num_hidden_layers in {model / 'config.json'} is {layers!r}, not")
    names = {f"model.layers.{number}.mlp.up_proj.weight": shard for number in range(2)}
    write_json(index, {"weight_map": names})
    for layers in (3, 10**9):
        write_json(model / "config.json", {**LLAMA_3_8B, "num_hidden_layers": layers})
        wrong = f"config.json in {model} has {layers} layers, but the weights have 2"
        says(checked(), "model-files", wrong)
    index.unlink()
    header = json.dumps({"transformer.h.1.mlp.c_fc.weight": {"data_offsets": [0, 1]}}).encode()
    (model / shard).write_bytes(len(header).to_bytes(8, "little") + header + bytes(2000))
    says(checked(), "model-files", wrong)
    write_json(model / "config.json", {**LLAMA_3_8B, "num_hidden_layers": 1})
    assert state(checked(), "model-files") == "ok", "more layers predict further tokens"


def test_a_file_where_a_folder_must_be(checked: Checked, model: Path) -> None:
    file = model / "tokenizer.json"
    found = checked(model={"path": str(file), "synthetic": None, "family": "llama", "tokenizer": str(file)})
    says(found, "model-files", f"model.path {file} is a file")
    assert found["model-files"].hint == f"set model.path to its folder, {model}"
    named = checked(engine={"directory": str(file)})
    says(named, "engine-folder", f"{file} is a file")
    says(found, "tokenizer", f"the tokenizer's folder {file} cannot be read: Not a directory")


def test_a_model_that_only_the_nodes_see(checked: Checked) -> None:
    rows = checked(model={"path": "/nowhere/llama", "synthetic": None, "family": "llama"})
    assert {state(rows, name) for name in ("tokenizer", "memory")} == {"unknown"}
    assert state(rows, "model-files") == "warn" and "ls /nowhere/llama" in (rows["model-files"].hint or "")


@pytest.mark.parametrize(
    ("path", "hub"), [("Qwen/Qwen3-8B", True), ("Qwen3-8B", False), ("a/Qwen/Qwen3-8B", False)]
)
def test_a_name_of_the_hub_as_a_path_leads_to_the_hub(
    checked: Checked, tmp_path: Path, path: str, hub: bool
) -> None:
    model = {"path": f"{tmp_path}/{path}", "synthetic": None, "family": "llama"}
    found = checked(model=model)["model-files"]
    assert found.state == "warn"
    assert ("--set model.hub=Qwen/Qwen3-8B" in (found.hint or "")) == hub


def test_a_model_that_is_not_on_a_file_system_which_this_machine_sees(
    checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"path": f"{tmp_path}/no/llama", "synthetic": None, "family": "llama"}
    assert state(checked(model=model), "model-files") == "warn", "this machine's own disk"
    monkeypatch.setattr("trtllm_hpc.validation.file_system_checks._file_system", lambda path: "lustre")
    says(checked(model=model), "model-files", f"there is no no in {tmp_path}")
    here = {"scheduler": "local", "partition": None}
    monkeypatch.undo()
    found = checked(model=model, cluster=here)["model-files"]
    assert found.state == "fail" and f"ls {tmp_path}, then correct model.path" in (found.hint or "")


@pytest.mark.parametrize(
    ("key", "check"),
    [
        ("engine.directory", "engine-folder"),
        ("model.tokenizer", "tokenizer"),
    ],
)
def test_a_path_that_the_system_refuses_fails(checked: Checked, key: str, check: str) -> None:
    # Too long a name is refused to everybody; a closed folder would not be to root, who may run this.
    path = f"/{'x' * 300}"
    section, _, name = key.partition(".")
    given = {"path": "/models/absent", "family": "llama"} if section == "model" else {}
    rows = checked(**{section: {**given, name: path}})
    assert [row.code for row in rows.values() if path in row.message and row.state == "fail"] == [check]
    outcome = rows[check]
    assert outcome.state == "fail" and outcome.message.startswith(path)
    assert outcome.hint is not None and "namei -l" in outcome.hint


def test_a_tokenizer_is_needed(checked: Checked, model: Path, engine: Path) -> None:
    (model / "tokenizer.json").unlink()
    says(checked(), "tokenizer", "there is no tokenizer in", "may be unable to reach the Hub")
    (model / "tokenizer.model").write_bytes(b"words")
    assert state(checked(), "tokenizer") == "ok"
    reference = checked(engine={"backend": "reference", "tensorrt_llm_version": None}, model={})
    assert "tokenizer" not in reference


def test_limits_that_only_a_streamed_answer_has(checked: Checked) -> None:
    asks: dict[str, Any] = {"slo": "ttft<500ms,itl.p99<50ms,latency<1s"}
    found = checked(companion={"benchmark": asks})
    says(found, "slo", "ttft, itl", "repository.decoupled is false")
    assert "repository.decoupled to true" in (found["slo"].hint or "")
    streams = {"decoupled": True}
    assert state(checked(companion={"benchmark": asks}, repository=streams), "slo") == "ok"
    asks["streaming"] = False
    found = checked(companion={"benchmark": asks}, repository=streams)
    says(found, "slo", "companion.benchmark.streaming is false")
    assert "companion.benchmark.streaming to true" in (found["slo"].hint or "")
    assert state(checked(companion={"benchmark": {**asks, "slo": "latency<1s"}}), "slo") == "ok"
    del asks["streaming"]
    openai = {"backend": "pytorch", "tensorrt_llm_version": "1.2.1"}
    assert state(checked(companion={"benchmark": asks}, engine=openai), "slo") == "ok"


def test_the_file_of_a_workload(checked: Checked, tmp_path: Path) -> None:
    file = tmp_path / "questions.json"
    asks = {"benchmark": {"workload": {"kind": "dataset", "path": str(file)}}}
    outcome = checked(companion=asks)["workload-file"]
    assert outcome.state == "warn" and "is not on this machine" in outcome.message and outcome.hint
    file.write_text('[{"prompt": "why?"}]')
    assert state(checked(companion=asks), "workload-file") == "ok"
    file.write_text('{"prompt": "why?"}\n{"prompt": 3}\n')
    says(checked(companion=asks), "workload-file", f"{file}:2: prompt must be text")


def test_a_model_that_does_not_fit(checked: Checked, model: Path) -> None:
    write_json(model / "config.json", LLAMA_3_70B)
    rows = checked()
    says(rows, "memory", "do not fit into 79.65 GiB a rank")
    remedy = rows["memory"].hint
    assert remedy is not None and remedy.startswith("set engine.tensor_parallel 2; or")
    assert state(checked(engine={"tensor_parallel": 2}), "memory") == "ok"


def test_a_quantized_checkpoint_is_as_large_as_its_index_says(checked: Checked, model: Path) -> None:
    """Also where only config.json says that it is quantized, as of checkpoints in a model's own FP8."""
    config = {**LLAMA_3_70B, "architectures": ["LlamaForCausalLM"]}
    write_json(model / "config.json", {**config, "quantization_config": {"quant_method": "fp8"}})
    for file in model.glob("*.safetensors*"):
        file.unlink()
    engine = {"backend": "pytorch", "tensorrt_llm_version": "1.2.1", "max_batch_size": 8, "max_seq_len": 2048}
    outcome = checked(engine=engine)["memory"]
    assert outcome.state == "unknown" and "is quantized (fp8) and has no index" in outcome.message
    write_json(model / "model.safetensors.index.json", {"metadata": {"total_size": 70 * 2**30}})
    outcome = checked(engine=engine)["memory"]
    assert outcome.state == "ok" and "tokens fit" in outcome.message


# A finished engine --------------------------------------------------------------------------------


def with_engine(checked: Checked, engine: Path, **engine_keys: Any) -> dict[str, Diagnostic]:
    return checked(engine={"directory": str(engine), "tensor_parallel": 4, **engine_keys})


def test_a_finished_engine_that_fits(checked: Checked, engine: Path) -> None:
    rows = with_engine(checked, engine)
    names = [name for name in rows if name.startswith("engine-") and name != "engines-folder"]
    assert len(names) == 6 and {state(rows, name) for name in names} == {"ok"}


def test_a_folder_without_an_engine(checked: Checked, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    says(with_engine(checked, tmp_path / "empty"), "engine-files", "there is no engine in")
    assert state(with_engine(checked, tmp_path / "nowhere"), "engine-files") == "unknown"
    says(with_engine(checked, tmp_path / "nowhere"), "engine-folder", f"there is no {tmp_path / 'nowhere'}")
    assert state(with_engine(checked, tmp_path / "not" / "here"), "engine-folder") == "unknown"


def test_an_engine_that_is_not_this_one(checked: Checked, tmp_path: Path, engine: Path) -> None:
    (engine / "rank3.engine").unlink()
    rows = with_engine(checked, engine)
    says(rows, "engine-files", "rank3.engine is missing")
    rows = with_engine(checked, new_engine(tmp_path / "two", tensor=2))
    says(rows, "engine-world", "built for 2 rank(s), but the plan says 4")
    rows = with_engine(checked, new_engine(tmp_path / "old", version="0.15.0"))
    says(rows, "engine-version", "of TensorRT-LLM 0.15.0, but the container has 0.16.0")


@pytest.mark.parametrize(
    ("job", "name", "words"),
    [
        (
            {"engine": {"max_batch_size": 128}},
            "engine-limits",
            "engine.max_batch_size is 128, but the engine",
        ),
        ({"engine": {"max_seq_len": 4096}}, "engine-limits", "engine.max_seq_len is 4096"),
        ({"engine": {"max_beam_width": 2}}, "engine-limits", "engine.max_beam_width is 2"),
        ({"repository": {"triton_max_batch_size": 65}}, "engine-limits", "was built for 64"),
        ({"kv_cache": {"enable_block_reuse": True}}, "paged-context", "kv_cache.enable_block_reuse needs"),
        (
            {"engine": {"enable_chunked_prefill": True}},
            "paged-context",
            "engine.enable_chunked_prefill needs",
        ),
    ],
)
def test_what_the_engine_was_not_built_for(
    checked: Checked, engine: Path, job: dict[str, Any], name: str, words: str
) -> None:
    given = {"directory": str(engine), "tensor_parallel": 4, **job.get("engine", {})}
    says(checked(**{**job, "engine": given}), name, words)


@pytest.mark.parametrize(
    ("mounts", "path", "here"),
    [
        (("/a:/models", "/b:/models/sub"), "/models/sub/x", "/b/x"),
        (("/b:/models/sub:ro", "/a:/models"), "/models/sub/x", "/b/x"),
        (("/data/models:/m", "/data/models"), "/m/y", "/data/models/y"),
        (("/a:/models",), "/models2/x", "/models2/x"),
    ],
)
def test_a_path_in_the_container_is_found_below_the_deepest_mount(
    context: Callable[..., Context], mounts: tuple[str, ...], path: str, here: str
) -> None:
    given = context()
    container = given.cluster.container.model_copy(update={"mounts": list(mounts)})
    given = replace(given, cluster=given.cluster.model_copy(update={"container": container}))
    assert given.path_here(path) == Path(here)
