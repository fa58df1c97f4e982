"""The toolchain: which of upstream's programs make a model into an engine in a given release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.config.diagnostics import in_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.command_lines import quantization, speculative
from trtllm_hpc.engines.command_lines.option_table import Role
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.tensorrt_llm.releases.commands import Command, quantized_file, quantizes, releases_with
from trtllm_hpc.tensorrt_llm.releases.families import Family, first_release, preparation
from trtllm_hpc.tensorrt_llm.releases.placeholders import known_placeholders, placeholders_of
from trtllm_hpc.tensorrt_llm.releases.release import Release, meant_family, option_lifetime, releases

PROGRAMS: Mapping[Role, str] = {
    "build_py": "build.py",
    "prepare": "hf_gpt_convert.py",
    "convert": "convert_checkpoint.py",
    "quantize": "quantize.py",
    "build": "trtllm-build",
}
MODEL_OPTIONS = (
    *("--checkpoint_dir", "--model_dir", "--model-dir", "--hf_model_dir", "--weight_dir"),
    *("--in-file", "--in_file", "-in_file"),
)
"""Options for what a program reads, in the order of preference."""
OUTPUT_OPTIONS = (
    *("--output_dir", "--output-model-dir", "--export_path"),
    *("--out-dir", "--out_dir", "-saved_dir"),
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
    _require_text(job, family)
    _require_architecture(job, release, family, model_config)
    if job.engine.encoder_decoder or family.encoder_decoder:
        _require_encoder_decoder(release, family)
        if job.engine.speculative is not None:
            message = f"TensorRT-LLM {release.version} drafts no tokens for an encoder and a decoder"
            raise NoToolchain("engine.speculative.mode", message, "leave engine.speculative out")
    by_build_py = release.command("build.py", family.examples) is not None
    programs = (_through_build_py if by_build_py else _through_checkpoint)(job, release, family)
    return Toolchain(release, family, programs)


def _through_build_py(job: JobFile, release: Release, family: Family) -> dict[Role, Command]:
    how = speculative.mode(job)
    if how is not None and how.examples is not None:
        first = _span("convert_checkpoint.py", how.examples)
        message = f"TensorRT-LLM {release.version} cannot draft tokens in this way{first}"
        raise NoToolchain("engine.speculative.mode", message, "take a newer release, or leave it out")
    build = _command("build_py", release, family.examples)
    prepare = _prepare(job, release, family, build)
    programs: dict[Role, Command] = {"build_py": build}
    if prepare is not None:
        programs = {"prepare": prepare, **programs}
    if quantization.tool(job.engine.quantization, by_build_py=True) == "quantize":
        method = str(job.engine.quantization.method)
        if not _reads_quantized(release, family, method):
            raise NoToolchain("engine.quantization.method", *_nothing_quantized(release, family, method))
        programs = {"quantize": _command("quantize", release, family.examples), **programs}
    return programs


def _prepare(job: JobFile, release: Release, family: Family, build: Command) -> Command | None:
    """The program that makes weights for ``build.py``; ``None`` where it reads the model itself."""
    how, quantized = preparation(family.examples), job.engine.quantization
    if how is not None and how.always:
        prepare: Command | None = _command("prepare", release, family.examples)
    elif (quantized.method != "int8_sq" and quantized.kv_cache != "int8") or quantized.checkpoint is not None:
        return None  # there are no scales of activations to compute
    else:
        prepare = release.command(how.program) if how is not None else None
    # What build.py has a switch for needs a program that computes the scales.
    wanted = (
        ("method", quantized.method == "int8_sq", "--use_smooth_quant", ("--smoothquant",)),
        ("kv_cache", quantized.kv_cache == "int8", "--int8_kv_cache", quantization.CALIBRATE_CACHE),
    )
    for key, is_wanted, switch, options in wanted:
        if not is_wanted or switch not in build.options or quantized.checkpoint is not None:
            continue
        if prepare is None or prepare.options.keys().isdisjoint(options):
            known = f"no program of TensorRT-LLM {release.version} is known"
            message = f"{known} that computes int8 scales for {family.name}"
            raise NoToolchain(f"engine.quantization.{key}", message, "take a newer release, or leave it out")
    return prepare


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
    how = speculative.mode(job)
    if quantization.tool(job.engine.quantization, by_build_py=False) == "quantize":
        quantize = _command("quantize", release, family.examples)
        if how is not None and how.weights is not None and how.weights not in quantize.options:
            message = f"quantize.py of TensorRT-LLM {release.version} does not join a model and its heads"
            hint = "set engine.quantization.tool to convert, or leave engine.speculative out"
            raise NoToolchain("engine.speculative.mode", message, hint)
        return {"quantize": quantize, "build": _command("build", release, family.examples)}
    heads = how.examples if how is not None else None
    key = "engine.speculative.mode" if heads else "model.family"
    convert = _command("convert", release, heads or family.examples, key)
    return {"convert": convert, "build": _command("build", release, family.examples)}


def program_name(role: Role, family: str) -> str:
    """The program that plays a role for the examples of a family; a family without one has GPT's."""
    how_prepared = preparation(family) if role == "prepare" else None
    return how_prepared.program if how_prepared is not None else PROGRAMS[role]


def _command(role: Role, release: Release, family: str, key: str = "engine.tensorrt_llm_version") -> Command:
    name = program_name(role, family)
    command = release.command(name, family)
    if command is None:
        known = "".join(_span(each, family) for each in dict.fromkeys((name, "build.py")))
        what = f"{name} for {family}" if role in ("convert", "build_py") else name
        hint = "use another release, or set model.family to one whose programs convert this model"
        if role in ("convert", "build_py") and not known:
            key, hint = "model.family", meant_family(release, name, family)
        raise NoToolchain(key, f"TensorRT-LLM {release.version} has no {what}{known}", hint)
    return command


def _require_text(job: JobFile, family: Family) -> None:
    if family.reads is None:
        return
    message = (
        f"{family.name} reads {family.reads}: besides its decoder's engine it needs that of an encoder of "
        f"{family.reads}, and Triton models that take {family.reads}; trtllm-hpc makes neither"
    )
    key = "model.path" if job.model.family is None else "model.family"
    hint = f"follow {family.guide} in tensorrtllm_backend, or take a model that reads text alone"
    raise NoToolchain(key, message, hint)


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


def _require_encoder_decoder(release: Release, family: Family) -> None:
    key, newer = "engine.encoder_decoder", "take a newer release"
    option, placeholder = "--max_encoder_input_len", "encoder_engine_dir"
    build = release.command("trtllm-build", family.examples)
    if build is None or option not in build.options:
        known = option_lifetime("trtllm-build", option, family.examples)
        message = (
            f"TensorRT-LLM {release.version} does not build an encoder and a decoder for Triton: "
            f"{known or 'no release here does'}"
        )
        raise NoToolchain(key, message, newer)
    template = (release.version, "inflight_batcher_llm", "tensorrt_llm")
    if placeholder not in placeholders_of(*template):
        since = known_placeholders(*template)[placeholder].since
        message = (
            f"TensorRT-LLM {release.version} builds an encoder and a decoder, but Triton serves no such "
            f"pair: its model tensorrt_llm has {placeholder} since {since}"
        )
        raise NoToolchain(key, message, newer)


def _span(name: str, family: str) -> str:
    """Which releases have a program, as the end of a sentence; empty if none has."""
    having = releases_with(name, family)
    if not having:
        return ""
    span = having[0] if len(having) == 1 else f"{having[0]} to {having[-1]}"
    return f"; {name} is there in {span}"
