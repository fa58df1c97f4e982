"""The toolchain: which of upstream's programs make a model into an engine in a given release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.config.diagnostics import in_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.options import Role, by_quantize
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.tensorrt_llm.releases.programs import Family, Program, first_release, releases_with
from trtllm_hpc.tensorrt_llm.releases.release import Release

PROGRAMS: Mapping[Role, str] = {
    "build_py": "build.py",
    "prepare": "hf_gpt_convert.py",
    "convert": "convert_checkpoint.py",
    "quantize": "quantize.py",
    "build": "trtllm-build",
}
LORA_PROGRAM = "hf_lora_convert.py"
"""Converts a Hugging Face adapter into the arrays that requests carry; no part of a toolchain."""
_MODEL_OPTIONS = ("--checkpoint_dir", "--model_dir", "--in-file")
"""Options for what a program reads, in the order of preference."""
_OUTPUT_OPTIONS = ("--output_dir", "--export_path", "--out-dir")


class NoToolchain(ConfigError):
    """The release has no programs that make an engine of this model; ``field`` is the key at fault."""

    def __init__(self, field: str, message: str, hint: str) -> None:
        super().__init__([in_job("release", field, message, hint)])


@dataclass(frozen=True)
class Toolchain:
    """What makes a model into an engine."""

    release: Release
    family: Family
    programs: Mapping[Role, Program]
    """In the order in which they run."""

    @property
    def first(self) -> Program:
        """The program that reads the model."""
        return next(iter(self.programs.values()))

    @property
    def builder(self) -> Program:
        """The program that builds the engine."""
        return self.programs["build_py" if self.by_build_py else "build"]

    @property
    def by_build_py(self) -> bool:
        """Whether ``build.py`` builds the engine; it reads the model itself."""
        return "build_py" in self.programs


def folders(program: Program) -> tuple[str, str]:
    """Return the options that name what a program reads and where it writes."""
    source, output = (
        next((option for option in spellings if option in program.options), spellings[0])
        for spellings in (_MODEL_OPTIONS, _OUTPUT_OPTIONS)
    )
    return source, output


def find_toolchain(
    job: JobFile, release: Release, family: Family, model_config: Mapping[str, Any] | None = None
) -> Toolchain:
    """Return the programs for this model, of a ``config.json`` that could be read, in this release.

    Raises NoToolchain if the release cannot build it.
    """
    built, first = first_release(family, model_config) or (None, None)
    if first is not None and not release.at_least(first):
        builds = f"TensorRT-LLM {release.version} builds no engine of {built}"
        message = f"{builds}: the first release that does is {first}"
        key = "model.path" if job.model.family is None or model_config is not None else "model.family"
        raise NoToolchain(key, message, f"take TensorRT-LLM {first} or later, or another model")
    roles: tuple[Role, ...]
    if release.program("build.py", family.examples) is not None:
        # GPT's reads FasterTransformer's format only (examples/gpt/README.md of 0.5 to 0.8).
        roles = ("prepare", "build_py") if family.examples == "gpt" else ("build_py",)
    else:
        roles = ("quantize" if by_quantize(job.engine.quantization) else "convert", "build")
    return Toolchain(release, family, {role: _program(role, release, family.examples) for role in roles})


def _program(role: Role, release: Release, family: str) -> Program:
    name = PROGRAMS[role]
    program = release.program(name, family)
    if program is not None:
        return program
    what = f"{name} for {family}" if role in ("convert", "build_py") else name
    message = f"TensorRT-LLM {release.version} has no {what}"
    if having := releases_with(name, family):
        message += f"; {name} is there in {having[0]} to {having[-1]}"
    key = "model.family" if role == "convert" else "engine.tensorrt_llm_version"
    hint = "use another release, or set model.family to one whose programs convert this model"
    raise NoToolchain(key, message, hint)
