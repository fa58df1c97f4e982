"""The steps before the build: a checkpoint in the form that the build reads."""

from __future__ import annotations

from trtllm_hpc.config.spelling.wish import Role
from trtllm_hpc.plan.backends.steps import Making
from trtllm_hpc.plan.model import BuildStep, Place, Word

MODEL = Place("model")
OUTPUT = Place("output")


def convert_step(making: Making) -> BuildStep:
    """``convert_checkpoint.py``: a Hugging Face model to TensorRT-LLM's checkpoint."""
    return _step(making, "convert", making.route.family.convert)


def quantize_step(making: Making) -> BuildStep:
    """``quantize.py``: the same, with smaller types found by looking at samples."""
    return _step(making, "quantize")


def prepare_step(making: Making) -> BuildStep:
    """``hf_gpt_convert.py``: FasterTransformer's format, which GPT's ``build.py`` reads."""
    return _step(making, "prepare")


def _step(making: Making, role: Role, further: tuple[str, ...] = ()) -> BuildStep:
    source, output = making.program(role).folders
    command: tuple[Word, ...] = (
        *making.run(role),
        *(source, MODEL),
        *further,
        *making.words(role),
        *(output, OUTPUT),
    )
    # Quantization measures on the GPU, but what it writes is of no GPU in particular.
    inputs = ("model", *making.folders(command))
    return BuildStep(role, (command,), inputs=inputs, identity=making.identity())
