"""The steps that build a TensorRT-LLM engine: upstream's programs with their arguments and folders.

``EngineFacts`` has the release's programs and their options. Here each program becomes a step that reads from
one folder and writes into another.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from trtllm_hpc.engines.facts import LORA_PROGRAM, EngineFacts, Toolchain, folders
from trtllm_hpc.engines.options import Role
from trtllm_hpc.errors import RenderError
from trtllm_hpc.layout import Layout
from trtllm_hpc.runtime.engine_cache.build_recipe import Argument, BuildStep, FolderArgument
from trtllm_hpc.tensorrt_llm.releases.programs import Program

_MODEL, _OUTPUT = FolderArgument("model"), FolderArgument("output")
OWN_FOLDERS = ("model", "output", "work")
"""Placeholders of ``build.commands`` for a folder, at the beginning of a word."""
OWN_NUMBERS = ("tensor_parallel", "pipeline_parallel", "world_size")
"""Placeholders of ``build.commands`` for a number of ``engine``; the only other placeholder is
``{examples}``."""
_WORK = "/.work"
"""Path of ``{work}`` below the output folder; the step removes it at its end."""
_GPUS_PER_NODE, _DEFAULT_GPUS_PER_NODE = "--gpus_per_node", 8
_NO_GPUS_PER_NODE = "1.2.0"
"""The first release whose ``trtllm-build`` lacks the option again."""


def make_steps(facts: EngineFacts, layout: Layout) -> tuple[BuildStep, ...]:
    """Return the steps from the model to its engine, which is the output of the last step.

    ``layout`` is the layout of the serve stage, because an engine of several ranks contains the number of
    GPUs per node. Raises NoToolchain if the release cannot build the engine; rules refuse such job files
    earlier.
    """
    if facts.job.build.commands:
        numbers = {key: getattr(facts.job.engine, key) for key in OWN_NUMBERS}
        values = {**numbers, "examples": facts.examples_folder}
        own = [tuple(_own_word(word, values) for word in command) for command in facts.job.build.commands]
        if any("{work}" in word for command in facts.job.build.commands for word in command):
            work = FolderArgument("output", _WORK)
            own = [("mkdir", "-p", work), *own, ("rm", "-r", work)]
        identity = _layout_identity(facts)
        return (BuildStep("build", tuple(own), inputs=("model",), identity=identity, on_gpu=True),)
    if facts.no_toolchain is not None:
        raise facts.no_toolchain
    if facts.toolchain is None:
        raise RenderError(
            "The model's family is not known, since its config.json cannot be read here.",
            hint="set model.family in the job file, e.g. to llama",
        )
    lora = [_lora_step(facts, facts.toolchain)] if facts.job.engine.lora.adapters else []
    programs = facts.toolchain.programs.items()
    return (*lora, *(_step(facts, facts.toolchain, layout, role, program) for role, program in programs))


def _step(
    facts: EngineFacts, toolchain: Toolchain, layout: Layout, role: Role, program: Program
) -> BuildStep:
    """Return the build step of a program of the toolchain."""
    assert facts.command_lines is not None
    engine, (source, output) = facts.job.engine, folders(program)
    is_builder = role in ("build", "build_py")
    before = next(iter(toolchain.programs))
    weights = _MODEL
    if before == "prepare" and is_builder:
        # The preparation writes into a subfolder named after the number of ranks.
        weights = FolderArgument(before, f"/{engine.tensor_parallel}-gpu")
    elif before != role:
        weights = FolderArgument(before)
    # A rank's device is its number modulo the engine's number of GPUs per node (worldConfig.h). With the
    # default of 8, an engine of 8 ranks cannot run on nodes of 4 GPUs.
    gpus = layout.gpus_per_node if engine.world_size > 1 else 0
    names_gpus = bool(gpus) and is_builder and _GPUS_PER_NODE in program.options
    command = (
        *(("trtllm-build",) if role == "build" else _script(facts, program.file or program.name)),
        *(source, weights),
        *facts.command_lines.argv(role),
        *((_GPUS_PER_NODE, str(gpus)) if names_gpus else ()),
        *(output, _OUTPUT),
    )
    further: tuple[tuple[Argument, ...], ...] = ()
    needs_gpus = not is_builder and gpus not in (0, _DEFAULT_GPUS_PER_NODE)
    if needs_gpus and toolchain.release.at_least(_NO_GPUS_PER_NODE):
        # Write the number into the checkpoint, from which the build copies it.
        runtime = FolderArgument("run", "/runtime.pyz")
        python = facts.cluster.container.python
        further = ((python, runtime, "gpus-per-node", str(gpus), _OUTPUT),)
    quantization = engine.quantization
    read = (quantization.checkpoint, quantization.calibration_dataset)
    return BuildStep(
        "build" if is_builder else role,
        (command, *further),
        inputs=(weights.name, *dict.fromkeys(name for name in read if name and name in command)),
        identity=_layout_identity(facts) if is_builder else {"tensorrt_llm": toolchain.release.version},
        # Quantization also runs on the GPU, but its output does not depend on the kind of GPU.
        on_gpu=is_builder,
    )


def _lora_step(facts: EngineFacts, toolchain: Toolchain) -> BuildStep:
    """Return the step that runs ``hf_lora_convert.py`` for each adapter, into a folder with its name."""
    lora = facts.job.engine.lora
    program = toolchain.release.program(LORA_PROGRAM, toolchain.family.examples)
    # Rules have checked that the release has the program, and that the adapters' names differ.
    script = _script(facts, (program and program.file) or LORA_PROGRAM)
    commands = tuple(
        (
            *(*script, "-i", adapter),
            *("-o", FolderArgument("output", f"/{PurePosixPath(adapter).name}")),
            *("--storage-type", lora.storage_type),
        )
        for adapter in lora.adapters
    )
    identity = {"tensorrt_llm": toolchain.release.version}
    return BuildStep("lora", commands, inputs=tuple(dict.fromkeys(lora.adapters)), identity=identity)


def _script(facts: EngineFacts, file: str) -> tuple[Argument, ...]:
    """Return the words that start one of upstream's examples; raise RenderError without their folder."""
    examples = facts.examples_folder
    if examples is None:
        version = facts.release.version if facts.release else ""
        message = f"The folder of upstream's examples of TensorRT-LLM {version} is not known."
        raise RenderError(message, hint="set container.examples in the cluster profile")
    return (facts.cluster.container.python, f"{examples}/{file}")


def _layout_identity(facts: EngineFacts) -> dict[str, Any]:
    """Return what an engine depends on besides its commands: the release and the parallel layout."""
    assert facts.release is not None
    keys = ("world_size", "tensor_parallel", "pipeline_parallel", "context_parallel")
    layout = {key: getattr(facts.job.engine, key) for key in keys}
    return {"tensorrt_llm": facts.release.version, "tensorrt": facts.release.tensorrt, "layout": layout}


def _own_word(word: str, values: Mapping[str, Any]) -> Argument:
    for name in OWN_FOLDERS:
        if word.startswith(f"{{{name}}}"):
            suffix = word.removeprefix(f"{{{name}}}").format_map(values)
            return (
                FolderArgument("output", _WORK + suffix) if name == "work" else FolderArgument(name, suffix)
            )
    return word.format_map(values)
