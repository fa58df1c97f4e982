"""Compile the engine section of a job file to the options of a toolchain's programs.

Every key that is set becomes an ``OptionRequest``; the release's own list of options decides which option
carries it, and a key without one becomes a problem of the job file. ``engine.options``, which are further
arguments, are checked against the same lists. So every job file that is not refused can be rendered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from trtllm_hpc.config.diagnostics import in_job, nearest, shown
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.options import (
    BEFORE_BUILD_PY,
    CONVERTED,
    DETAILS,
    DRAFT_LENGTH,
    LORA,
    ROWS,
    WITH_SCALES,
    Context,
    NotExpressible,
    OptionRequest,
    Role,
    argv,
    is_calibrated,
    quantization_tool,
    requests,
)
from trtllm_hpc.engines.toolchain import Toolchain, folders, program_name
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.tensorrt_llm.releases.commands import Command, Option
from trtllm_hpc.tensorrt_llm.releases.data_files import parsed
from trtllm_hpc.tensorrt_llm.releases.release import option_lifetime

RAW_ROLES: Sequence[Role] = tuple(role for role in get_args(Role) if role != "prepare")
"""Programs that take further arguments from ``engine.options``."""
_NOT_OF_THE_ENGINE = ("--workers", "--log_level")
"""Options that do not change the engine."""
_TYPES = ("float16", "bfloat16", "float32")


class CommandLines:
    """The options of a toolchain's programs, what is wrong with the keys, and what the user should know."""

    def __init__(self, job: JobFile, toolchain: Toolchain, model_config: Mapping[str, Any] | None) -> None:
        """Compile a job file; ``model_config`` is the model's ``config.json``, where it could be read."""
        self.job, self.toolchain = job, toolchain
        self.problems: list[Diagnostic] = []
        self._options: dict[Role, dict[str, tuple[str, ...]]] = {role: {} for role in toolchain.programs}
        """By program and option, in the order of the table; then defaults that differ between releases. Empty
        where an option expresses a value by being left out."""
        dtype: str | None = job.engine.dtype
        if dtype == "auto":
            # Upstream takes the checkpoint's own type, but float16 for float32.
            own = (model_config or {}).get("torch_dtype") or (model_config or {}).get("dtype")
            dtype = {"float32": "float16", "float16": "float16", "bfloat16": "bfloat16"}.get(str(own))
        self._context = Context(dtype, job.engine.max_input_len)
        for request in requests(job, by_build_py=toolchain.by_build_py):
            self._express(request)
        for role, command in toolchain.programs.items():
            self._complete(role, command)

    def argv(self, role: Role) -> tuple[str, ...]:
        """Return all arguments of one program but the folders that it reads and writes."""
        keys = (word for option in self._options[role].values() for word in option)
        return (*keys, *_raw(self.job, role))

    def _express(self, request: OptionRequest) -> None:
        """Add the options that carry a request, or a problem where no program of the toolchain has one."""
        done: set[Role] = set()
        reasons: list[str] = []
        for mapping in request.mappings:
            command = self.toolchain.programs.get(mapping.role)
            option = command.options.get(mapping.option) if command is not None else None
            is_done = mapping.role in done or (done and not request.in_every_program)
            if command is None or option is None or is_done:
                continue
            try:
                value = mapping.value(request.value, option, command, self._context)
            except NotExpressible as error:
                self._refuse(request, error.message, error.hint)
                return
            arguments = argv(option, value)
            if arguments is None:
                takes = f"takes {', '.join(option.choices)}" if option.choices else None
                takes = takes or f"cannot express {shown(request.value)}"
                reasons.append(f"{command.name}'s {option.name} {takes}")
                continue
            done.add(mapping.role)
            # An option that one key sets stays, though another leaves it out.
            options = self._options[mapping.role]
            options[option.name] = arguments or options.get(option.name, ())
        if not done and request.needed:
            self._refuse(request, *self._no_option(request, reasons))

    def _refuse(self, request: OptionRequest, message: str, hint: str | None) -> None:
        self.problems.append(in_job("release", request.key, message, hint, request.value))

    def _no_option(self, request: OptionRequest, reasons: Sequence[str]) -> tuple[str, str]:
        """Return message and hint; ``reasons`` say why the options that are there do not take the value."""
        version = self.toolchain.release.version
        if reasons:
            known = "; ".join(dict.fromkeys((*reasons, *self._lifetimes(request, exactly=True))))
            message = f"TensorRT-LLM {version} cannot do {shown(request.value)}: {known}"
            return message, f"choose another value, or leave {request.key} out"
        known = "; ".join(dict.fromkeys(self._lifetimes(request, exactly=False)))
        history = f": {known}" if known else NOWHERE
        hint = f"leave {request.key} out" + (", or take a release that has it" if known else "")
        section, _, name = request.key.rpartition(".")
        if section == "engine.plugins" and not known:
            every = (option for it in self.toolchain.programs.values() for option in it.options)
            plugins = [it[1] for it in map(re.compile(r"--(?:use_)?(.+)_plugin").fullmatch, every) if it]
            if near := nearest(name, plugins):
                hint = f"did you mean '{near}'?"
        if request.key == "engine.quantization.checkpoint":
            hint = f"leave {request.key} out, and set model.path to the folder of the quantized weights"
        return f"TensorRT-LLM {version} has no option for it{history}", self._replacement(request) or hint

    def _lifetimes(self, request: OptionRequest, *, exactly: bool) -> Iterator[str]:
        """Yield which releases have each option of a request (``exactly``: and take the value)."""
        for mapping in request.mappings:
            if isinstance(mapping.translate, Mapping) and request.value not in mapping.translate:
                continue
            is_same = isinstance(request.value, str) and (exactly or mapping.translate is None)
            value = request.value if is_same and not isinstance(mapping.translate, Mapping) else None
            command, examples = self.toolchain.programs.get(mapping.role), self.toolchain.family.examples
            family = (command.family if command is not None else None) or examples
            # If this release has it too, the option belongs to a program outside the toolchain.
            here, name = self.toolchain.release.version, program_name(mapping.role, examples)
            if clause := option_lifetime(name, mapping.option, family, value, here=here):
                yield clause

    def _replacement(self, request: OptionRequest) -> str | None:
        """Return what upstream names as the replacement of the option that was dropped last."""
        gone = [
            history
            for mapping in request.mappings
            if (command := self.toolchain.programs.get(mapping.role)) is not None
            and (history := command.histories.get(mapping.option)) is not None
            and history.last is not None
            and parsed(history.last) < parsed(self.toolchain.release.version)
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

    def _complete(self, role: Role, command: Command) -> None:
        """Add a problem for each required option that is missing, and defaults that differ between releases.

        The plan then shows what it relies on, and planning the same job file for another release shows the
        difference.
        """
        options = self._options[role]
        given = {*options, *folders(command), *(word.partition("=")[0] for word in _raw(self.job, role))}
        if "--autoq_format" in given:
            given.add("--qformat")  # quantize.py ignores it then
        for option in command.options.values():
            if option.required and not {option.name, *option.aliases} & given:
                message = f"{command.name} {command.release} needs {option.name}"
                choices = f", VALUE one of {', '.join(option.choices)}" if option.choices else ""
                hint = f"set it to [{option.name}, VALUE]{choices}"
                self.problems.append(in_job("release", f"engine.options.{role}", message, hint))
            if option.changed is None or option.name in {*given, *_NOT_OF_THE_ENGINE}:
                continue
            default = option.default
            if option.name.endswith("_plugin") and default in _TYPES and self._context.dtype is not None:
                # Before 0.11 the attention plugin's default is float16 whatever the model is,
                # and a plugin of another type than the model does not compute it.
                default = self._context.dtype
            if arguments := argv(option, default):
                options[option.name] = arguments

    def notes(self) -> Iterator[str]:
        """Yield what the user should know, though nothing is wrong."""
        engine, toolchain, version = self.job.engine, self.toolchain, self.toolchain.release.version
        first = toolchain.first
        option = first.options.get("--dtype") or first.options.get("--storage-type")
        is_unknown = engine.dtype == "auto" and self._context.dtype is None
        knows_auto = option is None or "auto" in option.choices or option.default in ("auto", None)
        if is_unknown and option is not None and not knows_auto:
            yield (
                f"engine.dtype is auto, but {first.name} {version} uses {option.default} by default, and the "
                "model's config.json cannot be read here: set engine.dtype."
            )
        wanted = engine.quantization
        chosen = quantization_tool(wanted, by_build_py=toolchain.by_build_py)
        program = toolchain.programs.get("quantize") or first
        # build.py reads scales that somebody has computed.
        if (
            is_calibrated(wanted, chosen)
            and wanted.calibration_dataset is None
            and program.name != "build.py"
        ):
            option = program.options.get("--calib_dataset")
            default = f" ({option.default})" if option is not None and option.default else ""
            remedy = "load it into the cache of Hugging Face datasets that the compute nodes see"
            if option is not None:
                remedy = "set engine.quantization.calibration_dataset to a local folder"
            yield (
                f"{program.name} downloads its calibration samples{default}, which compute nodes often "
                f"cannot: {remedy}."
            )
        builder = toolchain.builder
        is_one = bool(engine.gather_context_logits) != bool(engine.gather_generation_logits)
        if is_one and "--gather_context_logits" not in builder.options:
            yield f"{builder.name} {version} gathers the logits of both prompt and answer."
        for role, command in toolchain.programs.items():
            for word in _raw(self.job, role):
                option = command.find(word.partition("=")[0])
                if option is not None and option.ignored:
                    yield f"engine.options.{role}: {word} does nothing. {option.ignored}"


NOWHERE = ", and no release that is known here does"
"""How a refusal ends where no release has an option for the key; another program may do the same."""


# engine.options -----------------------------------------------------------------------

_Fault = tuple[int, str, str]
"""The index of an argument, what is wrong with it, and a hint."""


def _raw(job: JobFile, role: Role) -> tuple[str, ...]:
    return tuple(getattr(job.engine.options, role)) if role in RAW_ROLES else ()


def raw_problems(job: JobFile, toolchain: Toolchain) -> Iterator[Diagnostic]:
    """Yield what the release's programs would refuse, and what a key of the job file sets already."""
    for role in RAW_ROLES:
        given, command = _raw(job, role), toolchain.programs.get(role)
        if command is not None:
            yield from program_problems(given, role, command, toolchain.family.examples)
        elif given:
            programs = ", then ".join(it.name for it in toolchain.programs.values())
            runs = f"TensorRT-LLM {toolchain.release.version} runs {programs}"
            message = f"are for a program that has no part in this: {runs}"
            hint = "remove them, or write them under the program that they are for"
            yield in_job("release", f"engine.options.{role}", message, hint)


def program_problems(given: Sequence[str], role: str, command: Command, family: str) -> Iterator[Diagnostic]:
    """Yield the same for one program."""
    for index, message, hint in _faults(given, role, command, family):
        yield in_job("release", f"engine.options.{role}[{index}]", message, hint, given[index])


def _faults(given: Sequence[str], role: str, command: Command, family: str) -> Iterator[_Fault]:
    open_option: Option | None = None
    values = 0
    for index, word in enumerate((*given, "--")):
        if index < len(given) and (not word.startswith("-") or word[1:2].isdigit()):
            values += 1
            yield from _value_fault(index, word, open_option, values)
            continue
        if open_option is not None and open_option.form != "flag" and values == 0:
            yield index - 1, f"{open_option.name} needs a value", "add the value"
        if index == len(given):
            return
        name, equals, value = word.partition("=")
        open_option, values = command.find(name), 0
        if open_option is None:
            yield index, *_unknown_option(name, command, family)
        elif (key := _managing_key(role, open_option.name)) is not None:
            yield index, f"{name} is set by the toolkit itself", key
        if equals and open_option is not None:
            values = 1
            yield from _value_fault(index, value, open_option, values)


def _unknown_option(name: str, command: Command, family: str) -> tuple[str, str]:
    lifetime = option_lifetime(command.name, name, command.family or family)
    message = f"{command.name} {command.release} has no option {shown(name)}"
    history, near = command.histories.get(name), nearest(name, command.options)
    shows = f"'trtllm-hpc versions show {command.release} {command.name}'"
    hint = f"did you mean {near}? {shows} lists all" if near else f"{shows} lists those that it has"
    if history is not None and history.replaced_by:
        hint = f"write {history.replaced_by} instead"
    return f"{message}: {lifetime}" if lifetime else message, hint


def _value_fault(index: int, word: str, option: Option | None, count: int) -> Iterator[_Fault]:
    if option is None:
        if count == 1 and index == 0:
            yield index, f"{shown(word)} belongs to no option", "begin with an option, e.g. --log_level"
    elif option.form == "flag" or (count > 1 and option.form != "list"):
        yield index, f"{shown(word)} is one word more than {option.name} takes", "remove it"
    elif option.choices and word not in option.choices:
        hint = f"write one of {', '.join(option.choices)}"
        yield index, f"{option.name} does not take {shown(word)}", hint


_FOLDERS: Mapping[str, str] = {
    **dict.fromkeys(("--model_dir", "--in-file"), "set model.path"),
    **dict.fromkeys(
        ("--out-dir", "--export_path"), "leave it out: the checkpoint goes into the cache of engines"
    ),
    "--output_dir": "leave it out: the engine goes into the cache of engines",
    "--checkpoint_dir": "leave it out: it is what the step before has written",
    "--gpus_per_node": "leave it out: it comes from the cluster profile and serve.nodes",
    "--model_type": "set model.family",
}
_METHODS = (
    *("--use_weight_only", "--weight_only_precision", "--per_group", "--qformat", "--use_fp8_rowwise"),
    *("--use_nvfp4", "--use_qserve", "--use_fp8", "--enable_fp8", "--use_smooth_quant"),
)
_OTHERS: Mapping[str, Sequence[str]] = {
    "quantization.method": _METHODS,
    "quantization.auto_formats": ("--autoq_format",),
    "quantization.smoothquant": ("--smoothquant",),
    "quantization.kv_cache": ("--int8_kv_cache", "--fp8_kv_cache", "--kv_cache_dtype"),
    "quantization.checkpoint": (*CONVERTED, *BEFORE_BUILD_PY.values(), WITH_SCALES),
    **{f"quantization.{key}": [it.option for it in mappings] for key, mappings in DETAILS.items()},
    "max_lora_rank": ("--max_lora_rank",),
    **{f"lora.{key}": options for key, options in LORA.items()},
    "speculative.mode": ("--speculative_decoding_mode",),
    "speculative.max_draft_len": (DRAFT_LENGTH,),
}
"""Keys below ``engine`` that have no row in the table, and their options."""
_INSTEAD: Mapping[tuple[str, str], str] = {
    **{
        (role, option): f"set engine.{key}"
        for key, options in reversed([*_OTHERS.items()])
        for option in options
        for role in (*RAW_ROLES, "lora")
    },
    **{(it.role, it.option): f"set engine.{row.key}" for row in reversed(ROWS) for it in row.mappings},
    **{(role, option): what for option, what in _FOLDERS.items() for role in (*RAW_ROLES, "lora")},
    ("lora", "--storage-type"): "set engine.lora.storage_type",
    ("lora", "--in-file"): "set engine.lora.adapters",
}
"""What to do instead of writing an option by hand, by program and option."""


def _managing_key(role: str, option: str) -> str | None:
    """Return what to do instead of writing this option by hand; ``None`` if nothing else sets it."""
    plugin = re.fullmatch(r"--(?:use_)?([a-z0-9_]+)_plugin", option)
    return _INSTEAD.get((role, option)) or (f"set engine.plugins.{plugin[1]}" if plugin else None)
