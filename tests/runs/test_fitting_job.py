"""``init job --gpu``: a recipe for a checkpoint, or a layout derived from its size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runs.checkpoints import CHECKPOINTS, checkpoint
from tools.import_recipes import document
from trtllm_hpc.config.engine import Engine
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.runs.fitting_job import fitting_job
from trtllm_hpc.tensorrt_llm.recipes import Goal, recipes
from trtllm_hpc.tensorrt_llm.releases.data_files import read_data
from trtllm_hpc.validation.load import load

DATABASE = "examples/configs/database"
R1, R1_FP4 = "deepseek-ai/DeepSeek-R1-0528", "nvidia/DeepSeek-R1-0528-FP4-v2"
OURS = "No recipe fits"

NEWER = ("deepseek-v4", "minimax-m3", "nemotron-3", "qwen3.5", "qwen3.8")
"""Upstream's files for models that came after the newest release with a container of Triton's."""

EXPECTED: list[tuple[str, str, Goal, str, tuple[int, int | None]]] = [
    # Upstream's table has the model: its file, or the shipped job file made of it.
    ("Llama-3.3-70B-Instruct-FP8", "h100-80gb", "throughput", "llama-3.3-70b-fp8", (2, None)),
    ("Llama-3.3-70B-Instruct-FP8", "h200", "throughput", "curated/llama-3.3-70b.yaml", (1, 1)),
    ("Qwen3-30B-A3B", "h200", "throughput", "curated/qwen3.yaml", (1, 1)),
    ("Qwen3-235B-A22B-FP8", "h200", "throughput", "qwen3-235b-a22b-fp8", (8, 8)),
    ("DeepSeek-R1-0528", "h100-80gb", "throughput", "deepseek-r1-two-nodes", (16, 4)),
    ("DeepSeek-R1-0528", "h200", "throughput", "deepseek-r1-h200", (8, 8)),
    ("DeepSeek-R1-0528", "h200", "latency", f"{DATABASE}/{R1}/H200/8k1k_tp8_conc1.yaml", (8, 8)),
    ("DeepSeek-R1-0528", "b200", "latency", "curated/deepseek-r1-latency.yaml", (8, 2)),
    ("DeepSeek-R1-0528-FP4-v2", "b200", "latency", f"{DATABASE}/{R1_FP4}/B200/8k1k_tp4_conc4.yaml", (4, 1)),
    ("gpt-oss-120b", "h200", "latency", f"{DATABASE}/openai/gpt-oss-120b/H200/8k1k_tp1_conc4.yaml", (1, 1)),
    (
        "gpt-oss-120b",
        "gb200",
        "latency",
        "curated/gpt-oss-120b-latency.yaml",
        (8, 1),
    ),  # ours has a draft model
    ("gpt-oss-20b", "h200", "throughput", "gpt-oss-20b", (1, None)),
    # A shipped job file of ours has it.
    ("Qwen3-8B", "b200", "throughput", "qwen3-8b", (1, None)),
    # A recipe of the same architecture, in another precision or of another size, with our layout.
    ("Llama-3.1-8B-Instruct", "h200", "throughput", "llama-3.1-8b-fp8", (1, None)),
    ("Llama-3.3-70B-Instruct", "h100-80gb", "throughput", "llama-3.3-70b-fp8", (4, None)),
    ("Qwen3-32B", "h100-80gb", "throughput", "qwen3-8b", (2, None)),
    ("Kimi-K2-Instruct", "h100-80gb", "throughput", "deepseek-r1-two-nodes", (16, 16)),
    # None: derived.
    ("Llama-3.3-70B-Instruct", "h200", "latency", OURS, (2, None)),
    ("gpt-oss-120b", "h100-80gb", "throughput", OURS, (1, 1)),
    ("DeepSeek-R1-0528", "h100-80gb", "latency", OURS, (16, None)),
]


def written(folder: Path, model: Path, gpu: str, goal: Goal) -> tuple[Engine, list[str]]:
    """Write a job file for a checkpoint and load it; returns its section ``engine`` and the sentences."""
    text, notes = fitting_job(model, "mine", str(model), gpu, goal)
    (folder / "mine.yaml").write_text(text)
    job = load(folder / "mine.yaml", "pyxis").job
    assert job.model.path == str(model)
    return job.engine, notes


@pytest.mark.parametrize(("model", "gpu", "goal", "source", "ranks"), EXPECTED)
def test_a_checkpoint_gets_upstreams_recipe_or_the_layout_of_the_memory_planner(
    tmp_path: Path, model: str, gpu: str, goal: Goal, source: str, ranks: tuple[int, int | None]
) -> None:
    engine, notes = written(tmp_path, checkpoint(tmp_path, model), gpu, goal)
    assert source in notes[1]
    assert (engine.tensor_parallel, engine.moe_expert_parallel) == ranks
    upstream = next((it for it in recipes() if it.source in notes[1]), None)
    if upstream is not None:
        theirs, own = upstream.llm_api, ("max_batch_size", "max_num_tokens", "kv_cache_config")
        changed = " ".join(notes)
        for key in {*own} & {*theirs}:
            value = engine.llm_api.get(key, getattr(engine, key, None))
            assert value == theirs[key] or f"engine.{key}, " in changed
    for note in notes:
        words = " ".join((tmp_path / "mine.yaml").read_text().replace("\n#", "").split())
        assert " ".join(note.split()) in words


def test_every_checkpoint_gets_a_job_file_for_every_gpu_that_can_hold_it(tmp_path: Path) -> None:
    assert len(CHECKPOINTS) == 12
    for model in CHECKPOINTS:
        folder = checkpoint(tmp_path, model)
        for gpu in ("h100-80gb", "h200", "b200"):
            if "FP4" in model and gpu != "b200":
                with pytest.raises(ConfigError, match="needs compute capability"):
                    fitting_job(folder, "mine", str(folder), gpu, "latency")
            else:
                written(tmp_path, folder, gpu, "latency")


def test_every_recipe_of_upstreams_loads_without_the_keys_that_the_release_lacks(tmp_path: Path) -> None:
    config = {"architectures": ["Any"], "max_position_embeddings": 131072}
    for number, recipe in enumerate(recipes()):
        if recipe.goal == "disaggregated serving":
            continue
        folder = tmp_path / str(number) / recipe.models[0].rpartition("/")[2]
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        gpu = (*recipe.gpus, "b200")[0].replace("h100", "h100-80gb")
        engine, notes = written(tmp_path, folder, gpu, recipe.goal)
        assert OURS not in notes[1] and engine.tensor_parallel * engine.pipeline_parallel >= 1
        is_newer = any(it in notes[1] for it in NEWER) and "shipped job file" not in notes[1]
        assert ("for images after TensorRT-LLM 1.2.1" in notes[1]) == is_newer


def test_models_with_recipes_are_known() -> None:
    assert {name for recipe in recipes() for name in recipe.models} <= {*read_data("models")["model"]}


def test_what_is_ours_and_what_was_not_taken_is_written_down(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "DeepSeek-R1-0528")
    text, notes = fitting_job(folder, "mine", "/models/r1", "h200", "latency")
    assert "max_seq_len: 16384 # ours" in text and "path: /models/r1" in text
    assert any(it.startswith("Ours: engine.max_seq_len, for longer requests") for it in notes)
    assert any("for throughput: deepseek-r1-h200, deepseek-r1-two-nodes, curated/" in it for it in notes)
    assert notes[0] == "DeepSeek-R1-0528 on h200 for latency: DeepseekV3ForCausalLM, FP8, 641 GiB."


def test_prompts_are_cut_where_nothing_is_against_it(tmp_path: Path) -> None:
    engine, _ = written(tmp_path, checkpoint(tmp_path, "Qwen3-30B-A3B"), "h200", "throughput")
    assert engine.llm_api["enable_chunked_prefill"] and engine.max_num_tokens == 1152


def test_shipped_job_files_for_latency_are_marked(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, "DeepSeek-R1-0528-FP4-v2")
    _, notes = fitting_job(model, "mine", "/m", "b200", "throughput")
    assert any("for latency: deepseek-r1-latency, curated/" in it for it in notes)
    _, notes = fitting_job(model, "mine", "/m", "b200", "latency")
    assert any("for 8 GPUs: deepseek-r1-latency, curated/" in it for it in notes)


def test_speculation_and_an_fp8_cache_are_not_inherited_by_checkpoints_that_lack_them(tmp_path: Path) -> None:
    engine, _ = written(tmp_path, checkpoint(tmp_path, "Kimi-K2-Instruct"), "h200", "throughput")
    assert "speculative_config" not in engine.llm_api and engine.llm_api["enable_attention_dp"]
    engine, _ = written(tmp_path, checkpoint(tmp_path, "Llama-3.1-8B-Instruct"), "h200", "throughput")
    assert engine.llm_api["kv_cache_config"] == {"dtype": "auto", "free_gpu_memory_fraction": 0.9}


def test_without_an_index_the_planner_adds_up_the_matrices(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "Llama-3.3-70B-Instruct", stored=False)
    engine, _ = written(tmp_path, folder, "h100-80gb", "latency")
    assert engine.tensor_parallel == 4
    quantized = tmp_path / "unheard-of"
    quantized.mkdir()
    config = {"architectures": ["NewForCausalLM"], "quantization_config": {"quant_method": "awq"}}
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="no index of its weights"):
        fitting_job(quantized, "mine", "/m", "h200", "latency")


def test_what_fits_nowhere_or_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no number of l4 holds it"):
        fitting_job(checkpoint(tmp_path, "Kimi-K2-Instruct"), "mine", "/m", "l4", "latency")
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        fitting_job(tmp_path, "mine", "/m", "h200", "latency")


@pytest.mark.parametrize(
    ("found", "quantization"),
    [
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "FP8"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "INT4"),
        ({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}, "MXFP4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
        (None, "not quantized"),
    ],
)
def test_quantization_is_read_under_the_names_of_several_tools(
    tmp_path: Path, found: dict[str, str] | None, quantization: str
) -> None:
    folder = checkpoint(tmp_path, "Qwen3-8B")
    config = {**CHECKPOINTS["Qwen3-8B"][0], "quantization_config": found}
    # As of a multimodal model, whose text model has a section of its own.
    whole = {"architectures": config.pop("architectures"), "text_config": config}
    (folder / "config.json").write_text(json.dumps(whole))
    _, notes = fitting_job(folder, "mine", "/m", "b200", "throughput")
    assert notes[0].endswith(f"Qwen3ForCausalLM, {quantization}, 15.26 GiB.")


def test_the_importer_takes_goals_loads_and_moves_keys(tmp_path: Path) -> None:
    curated, database = tmp_path / "examples/configs/curated", tmp_path / "examples/configs/database"
    curated.mkdir(parents=True)
    database.mkdir()
    tail = "moe_config: {backend: TRTLLM}\nspeculative_config: {decoding_type: MTP, max_draft_len: 3}\n"
    (curated / "a.yaml").write_text(f"kv_cache_free_gpu_memory_fraction: 0.8\nprint_iter_log: true\n{tail}")
    entry = "- {model: org/A, arch: A, config_path: examples/configs/curated/%s, scenario: %s, %s}\n"
    listed = [
        ("a.yaml", it, 'gpu_compatibility: "Any"') for it in ("Max Throughput", "Disaggregated Prefill")
    ]
    (curated / "lookup.yaml").write_text("".join(entry % row for row in listed))
    rows, commits = "", "1111 examples/configs/curated/a.yaml\n"
    for load_ in (4, 16, 64):
        path = f"examples/configs/database/b{load_}.yaml"
        (tmp_path / path).write_text("tensor_parallel_size: 2\nenv_overrides: {A: 1}\n")
        rows += f"- {{model: org/B, gpu: H200_SXM, isl: 1024, osl: 2048, concurrency: {load_}, "
        rows += f"config_path: {path}, num_gpus: 2}}\n"
        commits += f"2222 {path}\n"
    (database / "lookup.yaml").write_text(rows)
    (tmp_path / "COMMITS").write_text(commits)
    text = document(tmp_path)
    assert text.count("[[recipe]]") == 3 and "b16.yaml" not in text and "print_iter_log" not in text
    assert 'gpus = ["b200", "gb200", "b300", "gb300"]' in text  # by the kernels of the experts
    assert '"kv_cache_config" = { "free_gpu_memory_fraction" = 0.8 }' in text
    assert '"num_nextn_predict_layers" = 3' in text and '"env_overrides" = { "A" = "1" }' in text
    assert 'load = "64 requests at once of 1024 + 2048 tokens"' in text and 'gpus = ["h200"]' in text
