"""The steps that build an engine of TensorRT-LLM: upstream's programs, with their arguments and folders.

``EngineFacts`` knows which programs the release has, and their options. Here each program becomes a step
that reads from one folder and writes into another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from trtllm_hpc.engines.facts import EngineFacts
from trtllm_hpc.engines.options import BEFORE_BUILD_PY, QSERVE, Role
from trtllm_hpc.engines.toolchain import LORA_PROGRAM, Toolchain, folders
from trtllm_hpc.errors import RenderError
from trtllm_hpc.layout import Layout
from trtllm_hpc.runtime.engine_cache.recipe import Argument, BuildStep, Placeholder
from trtllm_hpc.tensorrt_llm.releases.commands import Command, quantized_file
from trtllm_hpc.tensorrt_llm.releases.families import PREPARATIONS

MODEL = Placeholder("model")
OUTPUT = Placeholder("output")
GENERATION, GENERATION_STEP = "generation", "build_generation"
"""The variant of a disaggregated server's second engine, and the step that builds it."""
OWN_FOLDERS = ("model", "output", "work")
"""Placeholders of ``build.commands`` that stand for a folder, at the beginning of a word."""
OWN_NUMBERS = ("tensor_parallel", "pipeline_parallel", "world_size")
"""Placeholders of ``build.commands`` that stand for a number of ``engine``; ``{examples}`` is the last."""
_WORK = "/.work"
"""The folder ``{work}`` below the output, which the step removes at its end."""
GPUS_PER_NODE = "--gpus_per_node"
DEFAULT_GPUS_PER_NODE = 8


def make_steps(facts: EngineFacts, layout: Layout) -> tuple[BuildStep, ...]:
    """Return the steps from the model to its engine, which is the output of the last.

    ``layout`` is that of the serve stage: an engine of several ranks contains the number of GPUs of a node.
    Raises NoToolchain if the release cannot build it: the rules refuse such files when they are loaded.
    """
    if facts.job.build.commands:
        return (_own_step(facts),)
    steps = _Steps(facts, _toolchain(facts), layout)
    lora = [steps.lora()] if facts.job.engine.lora.adapters else []
    return (*lora, *(steps.step(role, command) for role, command in steps.toolchain.programs.items()))


def with_variant(steps: Sequence[BuildStep], variant: str) -> tuple[BuildStep, ...]:
    """Return the same steps under names of their own, for a recipe that builds another engine, too."""
    names = {step.name: f"{step.name}_{variant}" for step in steps}

    def renamed(word: Argument) -> Argument:
        return replace(word, name=names.get(word.name, word.name)) if isinstance(word, Placeholder) else word

    return tuple(
        replace(
            step,
            name=names[step.name],
            commands=tuple(tuple(map(renamed, command)) for command in step.commands),
            inputs=tuple(names.get(name, name) for name in step.inputs),
            variant=variant,
        )
        for step in steps
    )


def make_notes(facts: EngineFacts) -> tuple[str, ...]:
    """Return what the user should know of these steps, though nothing is wrong with them."""
    return () if facts.command_lines is None else tuple(facts.command_lines.notes())


def _toolchain(facts: EngineFacts) -> Toolchain:
    if facts.toolchain is not None:
        return facts.toolchain
    if facts.no_toolchain is not None:
        raise facts.no_toolchain
    raise RenderError(
        "The model's family is not known, since its config.json cannot be read here.",
        hint="set model.family in the job file, e.g. to llama",
    )


@dataclass(frozen=True)
class _Steps:
    facts: EngineFacts
    toolchain: Toolchain
    layout: Layout

    def step(self, role: Role, program: Command) -> BuildStep:
        """What a program of the toolchain does, and what its output depends on."""
        is_builder = role in ("build", "build_py")
        source, output = folders(program)
        environment: tuple[Argument, ...] = ()
        weights: tuple[Argument, ...] = (source, MODEL)
        inputs = ["model"]
        further: tuple[tuple[Argument, ...], ...] = ()
        if role == "build":
            checkpoint = next(iter(self.toolchain.programs))
            weights, inputs = (source, Placeholder(checkpoint)), [checkpoint]
        elif role == "build_py":
            weights, inputs = self._weights(source)
        else:
            further = self._gpus_per_node_of_checkpoint()
        if role == "convert" and self.facts.job.engine.quantization.method in QSERVE:
            # QServe's weights go the way before the unified converter (examples/llama/README.md, 'w4aINT8
            # quantization (QServe)').
            environment = ("env", "TRTLLM_DISABLE_UNIFIED_CONVERTER=1")
        command = (
            *environment,
            *self._program(program),
            *weights,
            *self._argv(role),
            *(self._gpus_per_node(program) if is_builder else ()),
            *(output, OUTPUT),
        )
        return BuildStep(
            "build" if is_builder else role,
            (command, *further),
            inputs=(*inputs, *self._folders(command)),
            identity=_layout_identity(self.facts) if is_builder else self._identity(),
            # Quantization measures on the GPU, but what it writes does not depend on the kind of GPU.
            on_gpu=is_builder,
        )

    def _weights(self, source: str) -> tuple[tuple[Argument, ...], list[str]]:
        """The options of ``build.py`` for the weights, and what they read.

        It reads the model itself (``source``), or weights that another program has made of it.
        """
        programs, family = self.toolchain.programs, self.toolchain.family
        option = PREPARATIONS[family.examples].option
        weights: tuple[Argument, ...] = (source, MODEL)
        inputs, is_quantized = ["model"], "quantize" in programs
        if "prepare" in programs:
            # Both programs write into a subfolder named after the ranks.
            prepared = (option, Placeholder("prepare", f"/{self.facts.job.engine.tensor_parallel}-gpu"))
            # What quantize.py has written goes with the model's own weights.
            weights, inputs = (
                ((*weights, *prepared), ["model", "prepare"]) if is_quantized else (prepared, ["prepare"])
            )
        elif option in self._argv("build_py") and not is_quantized:
            return (), []  # somebody has made them
        if is_quantized:
            file = quantized_file(self.toolchain.release.version, family.name, family.examples)
            method = str(self.facts.job.engine.quantization.method)
            weights += (BEFORE_BUILD_PY[method], Placeholder("quantize", f"/{file}"))
            inputs.append("quantize")
        return weights, inputs

    def lora(self) -> BuildStep:
        """``hf_lora_convert.py`` for each adapter, into a folder with the adapter's name."""
        engine = self.facts.job.engine
        command = self.toolchain.release.command(LORA_PROGRAM, self.toolchain.family.examples)
        # The rules have checked that the release has it, and that the names differ.
        program = self._script((command and command.file) or LORA_PROGRAM)
        options = ("--storage-type", engine.lora.storage_type, *engine.options.lora)
        commands = tuple(
            (
                *program,
                "-i",
                adapter,
                "-o",
                Placeholder("output", f"/{PurePosixPath(adapter).name}"),
                *options,
            )
            for adapter in engine.lora.adapters
        )
        return BuildStep("lora", commands, inputs=self._folders(*commands), identity=self._identity())

    def _program(self, program: Command) -> tuple[Argument, ...]:
        """How a program is started: the build lies on ``PATH``, the others below the examples."""
        if program.name == "trtllm-build" or program.file is None:
            return (program.name,)
        return self._script(program.file)

    def _script(self, file: str) -> tuple[Argument, ...]:
        """How a program of the examples is started. Raises RenderError where their folder is unknown."""
        examples = self.facts.examples_folder
        if examples is None:
            version = self.toolchain.release.version
            message = f"The folder of upstream's examples of TensorRT-LLM {version} is not known."
            raise RenderError(message, hint="set container.examples in the cluster profile")
        return (self.facts.cluster.container.python, f"{examples}/{file}")

    def _argv(self, role: Role) -> tuple[Argument, ...]:
        assert self.facts.command_lines is not None
        return self.facts.command_lines.argv(role)

    def _folders(self, *commands: tuple[Argument, ...]) -> tuple[str, ...]:
        """Folders and files besides the model's that these commands read: the output depends on them."""
        engine = self.facts.job.engine
        named = (
            engine.quantization.checkpoint,
            engine.quantization.calibration_dataset,
            *engine.lora.directories,
            *engine.lora.adapters,
        )
        words = {word for command in commands for word in command}
        return tuple(dict.fromkeys(name for name in named if name is not None and name in words))

    def _gpus_per_node(self, program: Command) -> tuple[str, ...]:
        """GPUs of a node as the ranks will see them, which the engine keeps where the release has the option.

        A rank's device is its number modulo this, so the default of 8 stops an
        engine of 8 ranks on nodes of 4 GPUs (``worldConfig.h``, ``worldConfig.cpp``).
        """
        gpus = self.layout.gpus_per_node
        if self.facts.job.engine.world_size == 1 or not gpus or GPUS_PER_NODE not in program.options:
            return ()
        return (GPUS_PER_NODE, str(gpus))

    def _gpus_per_node_of_checkpoint(self) -> tuple[tuple[Argument, ...], ...]:
        """The command that writes a node's GPUs into the checkpoint, since ``trtllm-build`` lost the option.

        An engine that names none is for nodes of eight (``Mapping``'s default).
        """
        build, gpus = self.toolchain.programs.get("build"), self.layout.gpus_per_node
        one_rank = self.facts.job.engine.world_size == 1
        if build is None or one_rank or gpus in (0, DEFAULT_GPUS_PER_NODE):
            return ()
        gone = build.histories[GPUS_PER_NODE].gone
        # Before 0.9 there was no option either, and the engine kept no such number.
        if gone is None or not self.toolchain.release.at_least(gone):
            return ()
        runtime = Placeholder("run", "/runtime.pyz")
        return ((self.facts.cluster.container.python, runtime, "gpus-per-node", str(gpus), OUTPUT),)

    def _identity(self) -> dict[str, Any]:
        return {"tensorrt_llm": self.toolchain.release.version}


def _layout_identity(facts: EngineFacts) -> dict[str, Any]:
    """What an engine depends on besides its commands: the release, and one parallel layout."""
    assert facts.release is not None
    keys = ("world_size", "tensor_parallel", "pipeline_parallel", "context_parallel")
    layout = {key: getattr(facts.job.engine, key) for key in keys}
    return {"tensorrt_llm": facts.release.version, "tensorrt": facts.release.tensorrt, "layout": layout}


def _own_step(facts: EngineFacts) -> BuildStep:
    """The job file's own commands, and the removal of ``{work}``."""
    numbers = {key: getattr(facts.job.engine, key) for key in OWN_NUMBERS}
    values = {**numbers, "examples": facts.examples_folder}
    commands = [tuple(_own_word(word, values) for word in command) for command in facts.job.build.commands]
    if any("{work}" in word for command in facts.job.build.commands for word in command):
        work = Placeholder("output", _WORK)
        commands = [("mkdir", "-p", work), *commands, ("rm", "-r", work)]
    return BuildStep(
        "build", tuple(commands), inputs=("model",), identity=_layout_identity(facts), on_gpu=True
    )


def _own_word(word: str, values: Mapping[str, Any]) -> Argument:
    for name in OWN_FOLDERS:
        if word.startswith(f"{{{name}}}"):
            suffix = word.removeprefix(f"{{{name}}}").format_map(values)
            return Placeholder("output", _WORK + suffix) if name == "work" else Placeholder(name, suffix)
    return word.format_map(values)
