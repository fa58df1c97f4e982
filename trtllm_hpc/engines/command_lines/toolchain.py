"""The toolchain: which of upstream's programs make a model into an engine in a given release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.config.diagnostics import in_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.command_lines import quantization
from trtllm_hpc.engines.command_lines.option_table import Role
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
MODEL_OPTIONS = (
    "--checkpoint_dir",
    "--model_dir",
    "--in-file",
)
"""Options for what a program reads, in the order of preference."""
OUTPUT_OPTIONS = (
    "--output_dir",
    "--export_path",
    "--out-dir",
)
"""Options for where a program writes."""


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
        for spellings in (MODEL_OPTIONS, OUTPUT_OPTIONS)
    )
    return source, output


def find_toolchain(
    job: JobFile, release: Release, family: Family, model_config: Mapping[str, Any] | None = None
) -> Toolchain:
    """Return the programs for this model, of a ``config.json`` that could be read, in this release.

    Raises NoToolchain if the release cannot build it.
    """
    _require_architecture(job, release, family, model_config)
    by_build_py = release.command("build.py", family.examples) is not None
    programs = (_through_build_py if by_build_py else _through_checkpoint)(job, release, family)
    return Toolchain(release, family, programs)


def _through_build_py(job: JobFile, release: Release, family: Family) -> dict[Role, Command]:
    build = _command("build_py", release, family.examples)
    prepare = _prepare(job, release, family)
    programs: dict[Role, Command] = {"build_py": build}
    if prepare is not None:
        programs = {"prepare": prepare, **programs}
    if quantization.tool(job.engine.quantization, by_build_py=True) == "quantize":
        method = str(job.engine.quantization.method)
        if not _reads_quantized(release, family, method):
            raise NoToolchain("engine.quantization.method", *_nothing_quantized(release, family, method))
        programs = {"quantize": _command("quantize", release, family.examples), **programs}
    return programs


def _prepare(job: JobFile, release: Release, family: Family) -> Command | None:
    """The program that makes weights for ``build.py``; ``None`` where it reads the model itself."""
    quantized = job.engine.quantization
    scales = quantized.method == "int8_sq" or quantized.kv_cache == "int8"
    if PREPARATIONS[family.examples].always or (scales and quantized.checkpoint is None):
        return _command("prepare", release, family.examples)
    return None


def _reads_quantized(release: Release, family: Family, method: str) -> bool:
    """Whether ``build.py`` reads what ``quantize.py`` writes for the family."""
    build = release.command("build.py", family.examples)
    option = quantization.BEFORE_BUILD_PY[method]
    read = build is not None and option in build.options
    return read and quantized_file(release.version, family.name, family.examples) is not None


def _nothing_quantized(release: Release, family: Family, method: str) -> tuple[str, str]:
    able = (
        later.version
        for later in releases()
        if later.at_least(release.version)
        and (_reads_quantized(later, family, method) or _has_format(later, family, method))
    )
    first = next(able, None)
    message = (
        f"TensorRT-LLM {release.version} cannot do {method} for {family.name}: its build.py reads "
        "nothing that its quantize.py writes for that family"
    )
    if first is None:
        return message, "choose another method"
    return f"{message}; the first release that can is {first}", "take a newer release, or another method"


def _has_format(release: Release, family: Family, method: str) -> bool:
    """Whether the family has no ``build.py`` any more, and ``quantize.py`` has the format."""
    quantize = release.command("quantize.py", family.examples)
    option = quantize.options.get("--qformat") if quantize is not None else None
    by_build_py = release.command("build.py", family.examples) is not None
    known = quantizes(release.version, family.name, family.examples)
    return not by_build_py and known and option is not None and method in option.choices


def _through_checkpoint(job: JobFile, release: Release, family: Family) -> dict[Role, Command]:
    chosen = quantization.tool(job.engine.quantization, by_build_py=False)
    first: Role = "quantize" if chosen == "quantize" else "convert"
    return {role: _command(role, release, family.examples) for role in (first, "build")}


def program_name(role: Role, family: str) -> str:
    """The program that plays a role for the examples of a family."""
    how = PREPARATIONS.get(family) if role == "prepare" else None
    return PROGRAMS[role] if how is None else how.program


def _command(role: Role, release: Release, family: str) -> Command:
    name = program_name(role, family)
    command = release.command(name, family)
    if command is None:
        known = "".join(_span(each, family) for each in dict.fromkeys((name, "build.py")))
        what = f"{name} for {family}" if role in ("convert", "build_py") else name
        key = "model.family" if role == "convert" else "engine.tensorrt_llm_version"
        hint = "use another release, or set model.family to one whose programs convert this model"
        raise NoToolchain(key, f"TensorRT-LLM {release.version} has no {what}{known}", hint)
    return command


def _require_architecture(
    job: JobFile, release: Release, family: Family, model_config: Mapping[str, Any] | None
) -> None:
    built, first = first_release(family, model_config) or (None, None)
    if first is None or release.at_least(first):
        return
    builds = f"TensorRT-LLM {release.version} builds no engine of {built}"
    message = f"{builds}: the first release that does is {first}"
    key = "model.path" if job.model.family is None or model_config is not None else "model.family"
    raise NoToolchain(key, message, f"take TensorRT-LLM {first} or later, or another model")


def _span(name: str, family: str) -> str:
    """Which releases have a program, as the end of a sentence; empty if none has."""
    having = releases_with(name, family)
    if not having:
        return ""
    span = having[0] if len(having) == 1 else f"{having[0]} to {having[-1]}"
    return f"; {name} is there in {span}"
