"""The steps before the build: a checkpoint in the form that the build reads."""

from __future__ import annotations

from trtllm_hpc.config.spelling.wish import Role
from trtllm_hpc.plan.backends.steps import Making
from trtllm_hpc.plan.model import BuildStep, Place, Word

MODEL = Place("model")
OUTPUT = Place("output")


def convert_step(making: Making) -> BuildStep:
    """``convert_checkpoint.py``: a Hugging Face model to TensorRT-LLM's checkpoint."""
    return _step(making, "convert", ("--model_dir", MODEL, *making.route.family.convert), "--output_dir")


def quantize_step(making: Making) -> BuildStep:
    """``quantize.py``: the same, with smaller types found by looking at samples."""
    options = making.program("quantize").command.options
    # Named --export_path before 0.8.
    output = "--output_dir" if "--output_dir" in options else "--export_path"
    return _step(making, "quantize", ("--model_dir", MODEL), output)


def prepare_step(making: Making) -> BuildStep:
    """``hf_gpt_convert.py``: FasterTransformer's format, which GPT's ``build.py`` reads."""
    return _step(making, "prepare", ("--in-file", MODEL), "--out-dir")


def _step(making: Making, role: Role, source: tuple[Word, ...], output: str) -> BuildStep:
    command = (*making.run(role), *source, *making.words(role), output, OUTPUT)
    # Quantization measures on the GPU, but what it writes is of no GPU in particular.
    return BuildStep(role, (command,), inputs=("model",), identity=making.identity())
