"""The steps before the build: a checkpoint in the form that the build reads."""

from __future__ import annotations

from packaging.version import Version

from trtllm_hpc.plan.backends.steps import Making
from trtllm_hpc.runtime.engine_cache.recipe import Argument, BuildStep, Placeholder
from trtllm_hpc.tensorrt_llm.command_lines.encoder_decoder import PARTS
from trtllm_hpc.tensorrt_llm.command_lines.option_request import Role

MODEL = Placeholder("model")
OUTPUT = Placeholder("output")
GPUS_PER_NODE = "--gpus_per_node"
DEFAULT_GPUS_PER_NODE = 8


def convert_step(making: Making) -> BuildStep:
    """``convert_checkpoint.py``: a Hugging Face model to TensorRT-LLM's checkpoint."""
    family = making.route.family
    # Heads have a program of their own, which knows nothing of the family's further words.
    own = making.program("convert").command.family == family.examples
    return _step(making, "convert", family.convert if own else ())


def quantize_step(making: Making) -> BuildStep:
    """``quantize.py``: the same, with smaller types found by looking at samples."""
    return _step(making, "quantize")


def prepare_step(making: Making) -> BuildStep:
    """``hf_gpt_convert.py``: FasterTransformer's format, which GPT's ``build.py`` reads."""
    return _step(making, "prepare")


def _step(making: Making, role: Role, further: tuple[str, ...] = ()) -> BuildStep:
    source, output = making.program(role).folders
    command: tuple[Argument, ...] = (
        *making.run(role),
        *(source, MODEL),
        *further,
        *making.words(role),
        *(output, OUTPUT),
    )
    # Quantization measures on the GPU, but what it writes is of no GPU in particular.
    inputs = ("model", *making.folders(command))
    commands = (command, *_gpus_per_node(making))
    return BuildStep(role, commands, inputs=inputs, identity=making.identity())


def _gpus_per_node(making: Making) -> tuple[tuple[Argument, ...], ...]:
    """Names the GPUs of a node in the checkpoint, where ``trtllm-build`` has no option for it any more.

    An engine that names none is for nodes of eight (``Mapping``'s default).
    """
    build, gpus = making.route.program("build"), making.layout.gpus_per_node
    if build is None or making.job.engine.world_size == 1 or gpus in (0, DEFAULT_GPUS_PER_NODE):
        return ()
    history = build.command.history(GPUS_PER_NODE)
    gone = history.gone if history is not None else None
    # Before 0.9 there was no option either, and the engine kept no such number.
    if gone is None or Version(making.release.version) < Version(gone):
        return ()
    parts = PARTS if making.route.family.encoder_decoder else (None,)
    folders = (Placeholder("output", f"/{part}" if part is not None else "") for part in parts)
    runtime = Placeholder("run", "/runtime.pyz")
    return ((making.cluster.container.python, runtime, "gpus-per-node", str(gpus), *folders),)
