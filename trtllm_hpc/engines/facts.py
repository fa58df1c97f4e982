"""Facts about an engine that follow from a job file and a profile: model family, programs, command lines.

Each key that is set in the engine section is passed as an option. The release's own list of options decides
which one; a key without an option is a fault of the job file. ``engine.options``, which are further
arguments, are checked against the same lists. So every job file that is not refused can be rendered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from trtllm_hpc.config.diagnostics import in_job, nearest, shown
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.options import (
    ENGINE_KEYS,
    EngineKey,
    NotExpressible,
    Role,
    argv,
    by_quantize,
    requests,
)
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.releases.programs import (
    Family,
    Program,
    find_family,
    first_release,
    releases_with,
)
from trtllm_hpc.tensorrt_llm.releases.release import Release

PROGRAMS: Mapping[Role, str] = {
    "build_py": "build.py",
    "prepare": "hf_gpt_convert.py",
    "convert": "convert_checkpoint.py",
    "quantize": "quantize.py",
    "build": "trtllm-build",
}
LORA_PROGRAM = "hf_lora_convert.py"
"""Program that converts a Hugging Face adapter into the arrays that requests carry; not part of a
toolchain."""
_MODEL_OPTIONS = ("--checkpoint_dir", "--model_dir", "--in-file")
"""Options for a program's input folder, in the order of preference."""
_OUTPUT_OPTIONS = ("--output_dir", "--export_path", "--out-dir")


class NoToolchain(ConfigError):
    """The release has no programs that make an engine of this model; ``field`` is the key at fault."""

    def __init__(self, field: str, message: str, hint: str) -> None:
        super().__init__([in_job("release", field, message, hint)])


@dataclass(frozen=True)
class Toolchain:
    """The programs that turn a model into an engine."""

    release: Release
    family: Family
    programs: Mapping[Role, Program]
    """Programs by role, in the order in which they run."""

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
        """Whether ``build.py`` builds the engine, directly from the model."""
        return "build_py" in self.programs


def folders(program: Program) -> tuple[str, str]:
    """Return the options for a program's input and output folders."""
    source, output = (
        next((option for option in spellings if option in program.options), spellings[0])
        for spellings in (_MODEL_OPTIONS, _OUTPUT_OPTIONS)
    )
    return source, output


def find_toolchain(
    job: JobFile, release: Release, family: Family, model_config: Mapping[str, Any] | None = None
) -> Toolchain:
    """Return the programs that build an engine of a model with this release.

    ``model_config`` is the model's ``config.json``, if it could be read. Raises NoToolchain if the release
    cannot build the engine.
    """
    built, first = first_release(family, model_config) or (None, None)
    if first is not None and not release.at_least(first):
        builds = f"TensorRT-LLM {release.version} builds no engine of {built}"
        message = f"{builds}: the first release that does is {first}"
        key = "model.path" if job.model.family is None or model_config is not None else "model.family"
        raise NoToolchain(key, message, f"take TensorRT-LLM {first} or later, or another model")
    roles: tuple[Role, ...]
    if release.program("build.py", family.examples) is not None:
        # GPT's build.py reads only FasterTransformer's format (examples/gpt/README.md of 0.5 to 0.8).
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


_NOT_OF_THE_ENGINE = ("--workers", "--log_level")
"""Options that do not affect the engine."""
_TYPES = ("float16", "bfloat16", "float32")
_KEYS: Mapping[tuple[str, str], str] = {
    **{
        (mapping.role, mapping.option): f"engine.{key.key}"
        for key in reversed(ENGINE_KEYS)
        for mapping in key.mappings
    },
    ("build", "--gpus_per_node"): "serve.nodes",
}
"""The key to set instead of an option, by program and option."""


class CommandLines:
    """The options of a toolchain's programs, the faults of the job file's keys, and notes for the user."""

    def __init__(self, job: JobFile, toolchain: Toolchain, model_config: Mapping[str, Any] | None) -> None:
        """Compile a job file; ``model_config`` is the model's ``config.json``, if it could be read."""
        self.job, self.toolchain = job, toolchain
        self.problems: list[Diagnostic] = []
        self._options: dict[Role, dict[str, tuple[str, ...]]] = {role: {} for role in toolchain.programs}
        """Arguments by program and option, in the order of the table, then defaults that differ between
        releases. An empty tuple: the option expresses its value by being omitted."""
        dtype: str | None = job.engine.dtype
        if dtype == "auto":
            # As upstream: the checkpoint's own type, but float16 for float32.
            own = (model_config or {}).get("torch_dtype") or (model_config or {}).get("dtype")
            dtype = {"float32": "float16", "float16": "float16", "bfloat16": "bfloat16"}.get(str(own))
        self._engine = job.engine.model_copy(update={"dtype": dtype})
        for key, value in requests(job.engine):
            self._express(key, value)
        for role in get_args(Role):
            self.problems += self._raw_problems(role, _raw(job, role))
        for role, program in toolchain.programs.items():
            self._complete(role, program)

    def argv(self, role: Role) -> tuple[str, ...]:
        """Return all arguments of a program except its input and output folders."""
        keys = (word for option in self._options[role].values() for word in option)
        return (*keys, *_raw(self.job, role))

    def _express(self, key: EngineKey, value: Any) -> None:
        """Add the options that carry a key's value, or a fault if no program of the toolchain has one."""
        done: set[Role] = set()
        reasons: list[str] = []
        for mapping in key.mappings:
            program = self.toolchain.programs.get(mapping.role)
            option = program.options.get(mapping.option) if program is not None else None
            is_done = mapping.role in done or (done and not key.in_every_program)
            if program is None or option is None or is_done:
                continue
            try:
                arguments = argv(option, mapping.value(value, option, program, self._engine))
            except NotExpressible as error:
                self.problems.append(in_job("release", f"engine.{key.key}", error.message, error.hint, value))
                return
            if arguments is None:
                takes = ", ".join(option.choices)
                cannot = f"takes {takes}" if takes else f"cannot express {shown(value)}"
                reasons.append(f"{program.name}'s {option.name} {cannot}")
                continue
            done.add(mapping.role)
            # Keep an option that another key has set, if this key omits it.
            options = self._options[mapping.role]
            options[option.name] = arguments or options.get(option.name, ())
        if not done and key.needed:
            message, hint = self._no_option(key.key, value, reasons)
            self.problems.append(in_job("release", f"engine.{key.key}", message, hint, value))

    def _no_option(self, key: str, value: Any, reasons: Sequence[str]) -> tuple[str, str]:
        """Return message and hint; ``reasons``: why the existing options cannot carry the value."""
        version = self.toolchain.release.version
        if reasons:
            message = f"TensorRT-LLM {version} cannot do {shown(value)}: {'; '.join(reasons)}"
            return message, f"choose another value, or leave engine.{key} out"
        message = f"no program that builds this engine with TensorRT-LLM {version} has an option for it"
        hint = "or take another release"
        if key.startswith("plugins."):
            every = (option for program in self.toolchain.programs.values() for option in program.options)
            matches = map(re.compile(r"--(?:use_)?(.+)_plugin").fullmatch, every)
            plugins = [match[1] for match in matches if match]
            if near := nearest(key.removeprefix("plugins."), plugins):
                return message, f"did you mean '{near}'?"
        elif key == "quantization.checkpoint":
            hint = "and set model.path to the folder of the quantized weights"
        return message, f"leave engine.{key} out, {hint}"

    def _raw_problems(self, role: Role, given: Sequence[str]) -> Iterator[Diagnostic]:
        """Yield faults of ``engine.options`` of a program: unknown options, and options that a key sets."""
        field, program = f"engine.options.{role}", self.toolchain.programs.get(role)
        if program is None:
            if given:
                programs = ", then ".join(other.name for other in self.toolchain.programs.values())
                runs = f"TensorRT-LLM {self.toolchain.release.version} runs {programs}"
                message = f"are for a program that is not used here: {runs}"
                hint = "remove them, or write them under the program that they are for"
                yield in_job("release", field, message, hint)
            return
        for index, word in enumerate(given):
            if not word.startswith("-") or word[1:2].isdigit():
                continue
            name = word.partition("=")[0]
            option = program.find(name)
            if option is None:
                message = f"{program.name} {program.release} has no option {shown(name)}"
                near = nearest(name, program.options)
                shows = f"'trtllm-hpc versions show {program.release} {program.name}' lists them"
                hint = f"did you mean {near}? {shows}" if near else shows
                yield in_job("release", f"{field}[{index}]", message, hint, word)
                continue
            key = _KEYS.get((role, option.name))
            if key or option.name in {*self._options[role], *folders(program)}:
                message, hint = f"{name} is set by the toolkit itself", f"set {key}" if key else "remove it"
                yield in_job("release", f"{field}[{index}]", message, hint, word)

    def _complete(self, role: Role, program: Program) -> None:
        """Add a fault for each missing required option, and write out defaults that differ between releases.

        So a plan shows the defaults that it relies on, and the plan of the same job file for another release
        shows the difference.
        """
        options = self._options[role]
        set_options = {
            *options,
            *folders(program),
            *(word.partition("=")[0] for word in _raw(self.job, role)),
        }
        for option in program.options.values():
            is_given = bool({option.name, *option.aliases} & set_options)
            if option.required and not is_given:
                message = f"{program.name} {program.release} needs {option.name}"
                choices = f", VALUE one of {', '.join(option.choices)}" if option.choices else ""
                hint = f"set it to [{option.name}, VALUE]{choices}"
                self.problems.append(in_job("release", f"engine.options.{role}", message, hint))
            if is_given or not option.default_varies or option.name in _NOT_OF_THE_ENGINE:
                continue
            default = option.default
            if option.name.endswith("_plugin") and default in _TYPES and self._engine.dtype is not None:
                # Before 0.11 the attention plugin's default is float16 for every model, but a plugin must
                # have the model's type.
                default = self._engine.dtype
            if arguments := argv(option, default):
                options[option.name] = arguments

    def notes(self) -> Iterator[str]:
        """Yield notes for the user, without any fault."""
        engine, toolchain, version = self.job.engine, self.toolchain, self.toolchain.release.version
        first = toolchain.first
        option = first.options.get("--dtype") or first.options.get("--storage-type")
        is_unknown = engine.dtype == "auto" and self._engine.dtype is None
        knows_auto = option is None or "auto" in option.choices or option.default in ("auto", None)
        if is_unknown and option is not None and not knows_auto:
            yield (
                f"engine.dtype is auto, but {first.name} {version} uses {option.default} by default, and the "
                "model's config.json cannot be read here: set engine.dtype."
            )
        wanted = engine.quantization
        is_calibrated = by_quantize(wanted) or wanted.kv_cache == "int8"
        if is_calibrated and wanted.calibration_dataset is None:
            yield (
                f"{first.name} downloads its calibration samples, which compute nodes often cannot: set "
                "engine.quantization.calibration_dataset to a local folder (from 0.10 on)."
            )
        for role, program in toolchain.programs.items():
            for word in _raw(self.job, role):
                option = program.find(word.partition("=")[0])
                if option is not None and option.ignored:
                    yield f"engine.options.{role}: {word} does nothing. {option.ignored}"


def _raw(job: JobFile, role: Role) -> tuple[str, ...]:
    """Return the further arguments of a program; none for the program that prepares weights."""
    return tuple(getattr(job.engine.options, role, ()))


@dataclass(frozen=True)
class EngineFacts(JobFacts):
    """The facts about a job with a TensorRT-LLM engine."""

    @cached_property
    def family(self) -> Family | None:
        """The family whose programs convert the model; ``None`` if unknown."""
        return find_family(self.job.model.family, self.model_config)

    @property
    def examples_folder(self) -> str | None:
        """The folder of upstream's ``examples`` in the container; ``None``: not known."""
        return self.cluster.container.examples or (self.release.paths.examples if self.release else None)

    @property
    def builds_engine(self) -> bool:
        """Whether the job's keys build its engine: the job names neither a finished engine nor commands."""
        return self.job.engine.directory is None and not self.job.build.commands

    @cached_property
    def _found_toolchain(self) -> Toolchain | NoToolchain | None:
        if self.release is None or self.family is None or not self.builds_engine:
            return None
        try:
            return find_toolchain(self.job, self.release, self.family, self.model_config)
        except NoToolchain as error:
            return error

    @property
    def toolchain(self) -> Toolchain | None:
        """The programs that build the engine; ``None`` if no engine is built, or none can be."""
        return self._found_toolchain if isinstance(self._found_toolchain, Toolchain) else None

    @property
    def no_toolchain(self) -> NoToolchain | None:
        """Why the release cannot build the engine."""
        return self._found_toolchain if isinstance(self._found_toolchain, NoToolchain) else None

    @cached_property
    def command_lines(self) -> CommandLines | None:
        """The options of the toolchain's programs; ``None`` without a toolchain."""
        return None if self.toolchain is None else CommandLines(self.job, self.toolchain, self.model_config)
