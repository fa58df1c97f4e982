"""Compile the engine section of a job file to the options of a toolchain's programs.

Every key that is set becomes an ``OptionRequest``; the release's own list of options decides which option
carries it, and a key without one becomes a problem of the job file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtllm_hpc.config.diagnostics import in_job, nearest, shown
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.command_lines import option_table as table
from trtllm_hpc.engines.command_lines import quantization, speculative
from trtllm_hpc.engines.command_lines.option_table import Context, NotExpressible, OptionRequest, Role, argv
from trtllm_hpc.engines.command_lines.raw_options import raw_argv
from trtllm_hpc.engines.command_lines.toolchain import Toolchain, folders, program_name
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.tensorrt_llm.releases.commands import Command
from trtllm_hpc.tensorrt_llm.releases.data_files import parsed
from trtllm_hpc.tensorrt_llm.releases.release import option_lifetime

OptionArgv = tuple[str, ...]
"""An option and its values."""
NOT_OF_THE_ENGINE = ("--workers", "--log_level")
"""Options that do not change the engine."""
_TYPES = ("float16", "bfloat16", "float32")


@dataclass
class CommandLines:
    """The options of each program, without the folders that it reads and writes."""

    toolchain: Toolchain
    options: Mapping[Role, dict[str, OptionArgv]]
    """By program and option, in the order of the table; then defaults that differ between releases.

    Empty where the option expresses a value by being left out.
    """
    problems: list[Diagnostic] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def argv(self, role: Role) -> tuple[str, ...]:
        """All arguments of one program."""
        return tuple(word for option in self.options[role].values() for word in option)


def compile_options(
    job: JobFile, toolchain: Toolchain, model_config: Mapping[str, Any] | None
) -> CommandLines:
    """Compile a job file to the options of the toolchain's programs.

    ``model_config`` is the model's ``config.json``, where it could be read.
    """
    compiled = CommandLines(toolchain, {role: {} for role in toolchain.programs})
    context = Context(_resolved_dtype(job, model_config), job.engine.max_input_len)
    for request in _requests(job, toolchain):
        _compile(compiled, request, context)
    for role, command in toolchain.programs.items():
        raw = {word.partition("=")[0] for word in raw_argv(job, role)}
        _require(compiled, role, command, raw)
        options = compiled.options[role]
        given = {*options, *raw}
        if "--autoq_format" in given:
            given.add("--qformat")  # quantize.py ignores it then
        options.update(_changed_defaults(command, given, context))
    compiled.notes += _notes(job, toolchain, context)
    return compiled


def _resolved_dtype(job: JobFile, model_config: Mapping[str, Any] | None) -> str | None:
    """The type that the model is computed in; ``None`` where only its unreadable ``config.json`` tells.

    Upstream's ``auto`` takes the checkpoint's own type, but float16 for float32.
    """
    dtype = job.engine.dtype
    if dtype != "auto":
        return dtype
    own = (model_config or {}).get("torch_dtype") or (model_config or {}).get("dtype")
    return {"float32": "float16", "float16": "float16", "bfloat16": "bfloat16"}.get(str(own))


def _requests(job: JobFile, toolchain: Toolchain) -> Iterator[OptionRequest]:
    yield from table.rows(job)
    yield from table.plugins(job)
    yield from quantization.requests(job, by_build_py=toolchain.by_build_py)
    yield from table.lora(job)
    yield from speculative.requests(job)


def _compile(compiled: CommandLines, request: OptionRequest, context: Context) -> None:
    """Add the options that carry a request, or a problem where no program of the toolchain has one."""
    done: set[Role] = set()
    reasons: list[str] = []
    for mapping in request.mappings:
        command = compiled.toolchain.programs.get(mapping.role)
        if command is None or mapping.role in done or (done and not request.in_every_program):
            continue
        option = command.options.get(mapping.option)
        if option is None:
            continue
        try:
            value = mapping.value(request.value, option, command, context)
        except NotExpressible as error:
            compiled.problems.append(in_job("release", request.key, error.message, error.hint, request.value))
            return
        arguments = argv(option, value)
        if arguments is None:
            takes = f"takes {', '.join(option.choices)}" if option.choices else None
            takes = takes or f"cannot express {shown(request.value)}"
            reasons.append(f"{command.name}'s {option.name} {takes}")
            continue
        done.add(mapping.role)
        options = compiled.options[mapping.role]
        # An option that one key sets stays, though another leaves it out.
        options[option.name] = arguments or options.get(option.name, ())
    if not done and request.needed:
        message, hint = _no_option(request, compiled.toolchain, reasons)
        compiled.problems.append(in_job("release", request.key, message, hint, request.value))


def _require(compiled: CommandLines, role: Role, command: Command, raw: Collection[str]) -> None:
    """Add a problem for each required option that neither a key nor ``engine.options`` sets."""
    given = {*compiled.options[role], *folders(command), *raw}
    for option in command.options.values():
        if option.required and not {option.name, *option.aliases} & given:
            message = f"{command.name} {command.release} needs {option.name}"
            choices = f" VALUE], VALUE one of {', '.join(option.choices)}" if option.choices else " VALUE]"
            hint = f"set it to [{option.name},{choices}"
            compiled.problems.append(in_job("release", f"engine.options.{role}", message, hint))


def _changed_defaults(command: Command, given: Collection[str], context: Context) -> dict[str, OptionArgv]:
    """Return the options that are not given and whose default differs between releases, with this default.

    The plan then shows what it relies on, and planning the same job file for another release shows the
    difference.
    """
    skipped = {*given, *NOT_OF_THE_ENGINE, *folders(command)}
    found: dict[str, OptionArgv] = {}
    for option in command.options.values():
        if option.changed is not None and option.name not in skipped:
            default = option.default
            if option.name.endswith("_plugin") and default in _TYPES and context.dtype is not None:
                # Before 0.11 the attention plugin's default is float16 whatever the model is,
                # and a plugin of another type than the model does not compute it.
                default = context.dtype
            arguments = argv(option, default)
            if arguments:
                found[option.name] = arguments
    return found


def _notes(job: JobFile, toolchain: Toolchain, context: Context) -> Iterator[str]:
    first = toolchain.first
    option = first.options.get("--dtype") or first.options.get("--storage-type")
    is_unknown = job.engine.dtype == "auto" and context.dtype is None
    knows_auto = option is None or "auto" in option.choices or option.default in ("auto", None)
    if is_unknown and option is not None and not knows_auto:
        yield (
            f"engine.dtype is auto, but {first.name} {toolchain.release.version} uses {option.default} "
            "by default, and the model's config.json cannot be read here: set engine.dtype."
        )
    yield from _calibration_note(job, toolchain)
    gathered = (job.engine.gather_context_logits, job.engine.gather_generation_logits)
    one_of_two = any(gathered) and not all(gathered)
    if one_of_two and "--gather_context_logits" not in toolchain.builder.options:
        name = f"{toolchain.builder.name} {toolchain.release.version}"
        yield f"{name} gathers the logits of both prompt and answer."


def _calibration_note(job: JobFile, toolchain: Toolchain) -> Iterator[str]:
    wanted = job.engine.quantization
    chosen = quantization.tool(wanted, by_build_py=toolchain.by_build_py)
    if not quantization.is_calibrated(wanted, chosen) or wanted.calibration_dataset is not None:
        return
    program = toolchain.programs.get("quantize") or toolchain.first
    if program.name == "build.py":
        return  # it reads scales that somebody has computed
    option = program.options.get("--calib_dataset")
    default = f" ({option.default})" if option is not None and option.default else ""
    remedy = "load it into the cache of Hugging Face datasets that the compute nodes see"
    if option is not None:
        remedy = "set engine.quantization.calibration_dataset to a local folder"
    yield (
        f"{program.name} downloads its calibration samples{default}, which compute nodes often "
        f"cannot: {remedy}."
    )


def _no_option(request: OptionRequest, toolchain: Toolchain, reasons: Sequence[str]) -> tuple[str, str]:
    """A message and a hint; ``reasons`` say why the options that are there do not take the value."""
    version = toolchain.release.version
    if reasons:
        known = "; ".join(dict.fromkeys((*reasons, *_lifetimes(request, toolchain, exactly=True))))
        message = f"TensorRT-LLM {version} cannot do {shown(request.value)}: {known}"
        return message, f"choose another value, or leave {request.key} out"
    known = "; ".join(dict.fromkeys(_lifetimes(request, toolchain, exactly=False)))
    history = f": {known}" if known else ", and no release that is known here does"
    section, _, name = request.key.rpartition(".")
    hint = f"leave {request.key} out, or take a release that has it"
    if not known:
        near = nearest(name, _plugins(toolchain)) if section == "engine.plugins" else None
        hint = f"did you mean '{near}'?" if near else f"leave {request.key} out"
    if request.key == "engine.quantization.checkpoint":
        hint = f"leave {request.key} out, and set model.path to the folder of the quantized weights"
    return f"TensorRT-LLM {version} has no option for it{history}", _replacement(request, toolchain) or hint


def _plugins(toolchain: Toolchain) -> list[str]:
    options = (option for command in toolchain.programs.values() for option in command.options)
    names = (re.fullmatch(r"--(?:use_)?(.+)_plugin", option) for option in options)
    return [name[1] for name in names if name is not None]


def _lifetimes(request: OptionRequest, toolchain: Toolchain, *, exactly: bool) -> Iterator[str]:
    """Which releases have each option of a request (``exactly``: and take the value), a clause each."""
    for mapping in request.mappings:
        if isinstance(mapping.translate, Mapping) and request.value not in mapping.translate:
            continue
        command = toolchain.programs.get(mapping.role)
        family = command.family if command is not None else None
        is_same = isinstance(request.value, str) and (exactly or mapping.translate is None)
        value = request.value if is_same and not isinstance(mapping.translate, Mapping) else None
        family = family or toolchain.family.examples
        name = program_name(mapping.role, toolchain.family.examples)
        # If this release has it too, the option belongs to a program outside the toolchain.
        clause = option_lifetime(name, mapping.option, family, value, here=toolchain.release.version)
        if clause:
            yield clause


def _replacement(request: OptionRequest, toolchain: Toolchain) -> str | None:
    """What upstream names as the replacement of the option that was dropped last."""
    gone = [
        history
        for mapping in request.mappings
        if (command := toolchain.programs.get(mapping.role)) is not None
        and (history := command.histories.get(mapping.option)) is not None
        and history.last is not None
        and parsed(history.last) < parsed(toolchain.release.version)
    ]
    last = max(gone, key=lambda history: parsed(str(history.last)), default=None)
    if last is None or last.replaced_by is None:
        return None
    placeholder, where, _ = last.replaced_by.partition(" in the config.pbtxt of tensorrt_llm")
    if where:
        return f"leave {request.key} out and set repository.parameters.tensorrt_llm.{placeholder}"
    nothing, _, why = last.replaced_by.partition("nothing: ")
    if not nothing:
        return f"leave {request.key} out: {why}"
    return f"leave {request.key} out; {last.name} became {last.replaced_by}"
