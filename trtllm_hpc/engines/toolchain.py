"""The toolchain: which of upstream's programs make a model into an engine in a given release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.config.diagnostics import in_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.options import BEFORE_BUILD_PY, Role, quantization_tool
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.tensorrt_llm.releases.commands import Command, quantized_file, quantizes, releases_with
from trtllm_hpc.tensorrt_llm.releases.families import PREPARATIONS, Family, first_release
from trtllm_hpc.tensorrt_llm.releases.release import Release, releases

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
    programs: Mapping[Role, Command]
    """In the order in which they run."""

    @property
    def first(self) -> Command:
        """The program that reads the model."""
        return next(iter(self.programs.values()))

    @property
    def builder(self) -> Command:
        """The program that builds the engine."""
        return self.programs["build_py" if self.by_build_py else "build"]

    @property
    def by_build_py(self) -> bool:
        """Whether ``build.py`` builds the engine; it reads the model itself."""
        return "build_py" in self.programs


def folders(command: Command) -> tuple[str, str]:
    """Return the options that name what a program reads and where it writes."""
    source, output = (
        next((option for option in spellings if option in command.options), spellings[0])
        for spellings in (_MODEL_OPTIONS, _OUTPUT_OPTIONS)
    )
    return source, output


def program_name(role: Role, family: str) -> str:
    """Return the program that plays a role for the examples of a family."""
    return PREPARATIONS[family].program if role == "prepare" and family in PREPARATIONS else PROGRAMS[role]


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
    wanted = job.engine.quantization
    by_build_py = release.command("build.py", family.examples) is not None
    by_quantize = quantization_tool(wanted, by_build_py=by_build_py) == "quantize"
    roles: list[Role]
    if by_build_py:
        roles = ["build_py"]
        needs_scales = wanted.checkpoint is None and (wanted.method == "int8_sq" or wanted.kv_cache == "int8")
        if PREPARATIONS[family.examples].always or needs_scales:
            roles.insert(0, "prepare")
        if by_quantize:
            if not _reads_quantized(release, family, str(wanted.method)):
                raise _nothing_quantized(release, family, str(wanted.method))
            roles.insert(0, "quantize")
    else:
        roles = ["quantize" if by_quantize else "convert", "build"]
    return Toolchain(release, family, {role: _command(role, release, family.examples) for role in roles})


def _reads_quantized(release: Release, family: Family, method: str) -> bool:
    """Whether ``build.py`` reads what ``quantize.py`` writes for the family."""
    build = release.command("build.py", family.examples)
    read = build is not None and BEFORE_BUILD_PY[method] in build.options
    return read and quantized_file(release.version, family.name, family.examples) is not None


def _nothing_quantized(release: Release, family: Family, method: str) -> NoToolchain:
    message = (
        f"TensorRT-LLM {release.version} cannot do {method} for {family.name}: its build.py reads "
        "nothing that its quantize.py writes for that family"
    )
    hint = "choose another method"
    for later in releases():
        if not later.at_least(release.version):
            continue
        quantize = later.command("quantize.py", family.examples)
        formats = quantize.options.get("--qformat") if quantize is not None else None
        by_checkpoint = later.command("build.py", family.examples) is None
        by_checkpoint &= quantizes(later.version, family.name, family.examples)
        by_checkpoint &= formats is not None and method in formats.choices
        if by_checkpoint or _reads_quantized(later, family, method):
            message += f"; the first release that can is {later.version}"
            hint = "take a newer release, or another method"
            break
    return NoToolchain("engine.quantization.method", message, hint)


def _command(role: Role, release: Release, family: str) -> Command:
    name = program_name(role, family)
    command = release.command(name, family)
    if command is not None:
        return command
    what = f"{name} for {family}" if role in ("convert", "build_py") else name
    message = f"TensorRT-LLM {release.version} has no {what}"
    for program in dict.fromkeys((name, "build.py")):
        if having := releases_with(program, family):
            span = having[0] if len(having) == 1 else f"{having[0]} to {having[-1]}"
            message += f"; {program} is there in {span}"
    key = "model.family" if role == "convert" else "engine.tensorrt_llm_version"
    hint = "use another release, or set model.family to one whose programs convert this model"
    raise NoToolchain(key, message, hint)
