"""``init job --gpu``: a recipe for a checkpoint, or a layout derived from its size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runs.checkpoints import CHECKPOINTS, checkpoint
from trtllm_hpc.config.engine import Engine
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.runs.job_files import Goal, fitting_job
from trtllm_hpc.validation.load import load

OURS = "No shipped job file fits"

EXPECTED: list[tuple[str, str, Goal, str, tuple[int, int | None]]] = [
    # A shipped job file is for the model.
    ("Llama-3.3-70B-Instruct-FP8", "h100-80gb", "throughput", "llama-3.3-70b-fp8", (2, None)),
    ("Qwen3-30B-A3B", "h200", "throughput", "qwen3-30b-a3b", (2, 2)),
    ("DeepSeek-R1-0528", "h100-80gb", "throughput", "deepseek-r1-two-nodes", (16, 4)),
    ("DeepSeek-R1-0528", "h200", "throughput", "deepseek-r1-h200", (8, 8)),
    ("DeepSeek-R1-0528-FP4-v2", "b200", "latency", "deepseek-r1-latency", (8, 2)),
    # None is: derived.
    ("Llama-3.3-70B-Instruct", "h100-80gb", "throughput", OURS, (4, None)),
    ("Kimi-K2-Instruct", "h100-80gb", "throughput", OURS, (16, 16)),
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
def test_a_checkpoint_gets_a_shipped_job_file_or_the_layout_of_the_memory_planner(
    tmp_path: Path, model: str, gpu: str, goal: Goal, source: str, ranks: tuple[int, int | None]
) -> None:
    engine, notes = written(tmp_path, checkpoint(tmp_path, model), gpu, goal)
    assert source in notes[1]
    assert (engine.tensor_parallel, engine.moe_expert_parallel) == ranks
    for note in notes:
        words = " ".join((tmp_path / "mine.yaml").read_text().replace("\n#", "").split())
        assert " ".join(note.split()) in words


def test_every_checkpoint_gets_a_job_file_for_every_gpu_that_can_hold_it(tmp_path: Path) -> None:
    assert len(CHECKPOINTS) == 8
    for model in CHECKPOINTS:
        folder = checkpoint(tmp_path, model)
        for gpu in ("h100-80gb", "h200", "b200"):
            if "FP4" in model and gpu != "b200":
                with pytest.raises(ConfigError, match="needs compute capability"):
                    fitting_job(folder, "mine", str(folder), gpu, "latency")
            else:
                written(tmp_path, folder, gpu, "latency")


def test_without_an_index_the_planner_adds_up_the_matrices(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "Llama-3.3-70B-Instruct", stored=False)
    engine, _ = written(tmp_path, folder, "h100-80gb", "latency")
    assert engine.tensor_parallel == 4
    quantized = tmp_path / "unheard-of"
    quantized.mkdir()
    config = {"architectures": ["NewForCausalLM"], "quantization_config": {"quant_method": "awq"}}
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="the weights have no index"):
        fitting_job(quantized, "mine", "/m", "h200", "latency")


def test_what_fits_nowhere_or_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it does not fit any number of l4"):
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
