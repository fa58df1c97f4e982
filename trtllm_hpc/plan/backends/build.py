"""The step that makes the engine: ``trtllm-build``, or ``build.py`` before it."""

from __future__ import annotations

from trtllm_hpc.plan.backends.convert import GPUS_PER_NODE, MODEL, OUTPUT
from trtllm_hpc.plan.backends.steps import Making
from trtllm_hpc.runtime.engine_cache.recipe import Argument, BuildStep, Placeholder
from trtllm_hpc.tensorrt_llm.command_lines.encoder_decoder import PARTS, Part
from trtllm_hpc.tensorrt_llm.command_lines.quantization import BEFORE_BUILD_PY
from trtllm_hpc.tensorrt_llm.command_lines.toolchain import Program

QUANTIZED = "/llama_tp1_rank0.npz"
"""File that quantize.py writes for LLaMA's build.py (examples/llama/README.md of 0.7.0)."""


def build_step(making: Making) -> BuildStep:
    """``trtllm-build`` from the checkpoint of the step before; for an encoder and a decoder, two of them."""
    source = next(program.role for program in making.route.programs)
    parts = making.job.engine.encoder_decoder or making.route.family.encoder_decoder
    commands = [_trtllm_build(making, source, part) for part in (PARTS if parts else (None,))]
    inputs = (source, *making.folders(*commands))
    return BuildStep("build", tuple(commands), inputs=inputs, identity=making.layout_identity(), on_gpu=True)


def _trtllm_build(making: Making, source: str, part: Part | None) -> tuple[Argument, ...]:
    below = f"/{part}" if part is not None else ""
    checkpoint, output = making.program("build").folders
    return (
        *making.run("build"),
        *(checkpoint, Placeholder(source, below)),
        *making.words("build", part),
        *gpus_per_node(making, making.program("build")),
        *(output, Placeholder("output", below)),
    )


def build_py_step(making: Making) -> BuildStep:
    """``build.py``, which reads the model itself."""
    before = [program.role for program in making.route.programs if program.role != "build_py"]
    model, inputs = MODEL, tuple(["model", *before])
    if "prepare" in before:
        # hf_gpt_convert.py writes a folder below, named after the ranks (its saved_dir).
        model = Placeholder("prepare", f"/{making.job.engine.tensor_parallel}-gpu")
        inputs = ("prepare",)
    source, output = making.program("build_py").folders
    command = (
        *making.run("build_py"),
        *(source, model),
        *_quantized(making),
        *making.words("build_py"),
        *gpus_per_node(making, making.program("build_py")),
        *(output, OUTPUT),
    )
    inputs += making.folders(command)
    return BuildStep("build", (command,), inputs=inputs, identity=making.layout_identity(), on_gpu=True)


def _quantized(making: Making) -> tuple[Argument, ...]:
    """Where ``quantize.py`` has left what ``build.py`` is to read besides the model."""
    method = making.job.engine.quantization.method
    if making.route.program("quantize") is None or method is None:
        return ()
    return (BEFORE_BUILD_PY[method], Placeholder("quantize", QUANTIZED))


def gpus_per_node(making: Making, program: Program) -> tuple[str, ...]:
    """GPUs of a node as the ranks will see them, which the engine keeps where the release has the option.

    A rank's device is its number modulo this, so the default of 8 stops an
    engine of 8 ranks on nodes of 4 GPUs (``worldConfig.h``, ``worldConfig.cpp``).
    """
    gpus = making.layout.gpus_per_node
    if making.job.engine.world_size == 1 or not gpus or GPUS_PER_NODE not in program.command.options:
        return ()
    return (GPUS_PER_NODE, str(gpus))
