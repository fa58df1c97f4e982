"""The walk: every wish of a job file against the options of the release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtllm_hpc.config.diagnostics import in_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.tensorrt_llm.command_lines import encoder_decoder, lora, quantization, speculative
from trtllm_hpc.tensorrt_llm.command_lines import option_table as table
from trtllm_hpc.tensorrt_llm.command_lines.argv import words
from trtllm_hpc.tensorrt_llm.command_lines.defaults import written_out
from trtllm_hpc.tensorrt_llm.command_lines.option_request import Context, Role, Unsayable, Wish
from trtllm_hpc.tensorrt_llm.command_lines.raw_options import raw_words
from trtllm_hpc.tensorrt_llm.command_lines.refusals import refusal, too_much
from trtllm_hpc.tensorrt_llm.command_lines.toolchain import Program, Route

Part = encoder_decoder.Part
OptionWords = tuple[str, ...]
"""An option and its values."""


@dataclass
class Spelling:
    """What each program is told, besides the folders that it reads and writes."""

    route: Route
    said: dict[Role, dict[str, OptionWords]] = field(default_factory=dict)
    """By program and option, in the order of the table."""
    left_out: dict[Role, set[str]] = field(default_factory=dict)
    """Options that say what is wanted by not being there."""
    defaults: dict[Role, dict[str, OptionWords]] = field(default_factory=dict)
    """Defaults that are not those of every release, written out."""
    problems: list[Diagnostic] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def words(self, role: Role) -> tuple[str, ...]:
        """Everything that this program is told, as words."""
        told = {**self.said.get(role, {}), **self.defaults.get(role, {})}
        return tuple(word for option in told.values() for word in option)


def spell(
    job: JobFile, route: Route, model_config: Mapping[str, Any] | None, part: Part | None = None
) -> Spelling:
    """What upstream's programs are told of a job file.

    Args:
        model_config: the model's ``config.json``, where it could be read.
        part: of an encoder-decoder model; ``None`` for the engine of any other.
    """
    spelling = Spelling(route)
    context = Context(resolved_dtype(job, model_config), job.engine.max_input_len)
    for wish in _wishes(job, route, part):
        _say(spelling, wish, context)
    for program in route.programs:
        _require(spelling, program, job)
        told = {*spelling.said.get(program.role, ()), *spelling.left_out.get(program.role, ())}
        told |= {word.partition("=")[0] for word in raw_words(job, program.role)}
        if "--autoq_format" in told:
            told.add("--qformat")  # not looked at beside the other
        spelling.defaults[program.role] = written_out(program, told, context)
    spelling.notes += _notes(job, route, context)
    return spelling


def resolved_dtype(job: JobFile, model_config: Mapping[str, Any] | None) -> str | None:
    """The type that the model is computed in; ``None`` where only its ``config.json`` tells, and is not here.

    Upstream's ``auto`` takes the checkpoint's own type, but float16 for float32.
    """
    dtype = job.engine.dtype
    if dtype != "auto":
        return dtype
    own = (model_config or {}).get("torch_dtype") or (model_config or {}).get("dtype")
    return {"float32": "float16", "float16": "float16", "bfloat16": "bfloat16"}.get(str(own))


def _wishes(job: JobFile, route: Route, part: Part | None) -> Iterator[Wish]:
    wishes = [
        *table.rows(job),
        *table.plugins(job),
        *quantization.wishes(job, by_build_py=route.by_build_py),
        *lora.wishes(job),
        *speculative.wishes(job),
    ]
    yield from wishes if part is None else encoder_decoder.adapted(wishes, job, route.family, part)


def _say(spelling: Spelling, wish: Wish, context: Context) -> None:
    told: set[Role] = set()
    reasons: list[str] = []
    for way in wish.ways:
        program = spelling.route.program(way.role)
        if program is None or way.role in told or (told and not wish.everywhere):
            continue
        option = program.command.options.get(way.option)
        if option is None:
            continue
        try:
            value = way.value(wish.value, option, program.command, context)
        except Unsayable as error:
            spelling.problems.append(in_job("release", wish.key, error.message, error.hint, wish.value))
            return
        said = words(option, value) if value is not None else None
        if said is None:
            reasons.append(too_much(program.command, option, wish.value))
            continue
        told.add(way.role)
        _keep(spelling, program, option.name, said)
    if not told and wish.needed:
        message, hint = refusal(wish, spelling.route, reasons)
        spelling.problems.append(in_job("release", wish.key, message, hint, wish.value))


def _require(spelling: Spelling, program: Program, job: JobFile) -> None:
    """Options that the program wants and that no key says must stand among the further words."""
    given = {word.partition("=")[0] for word in raw_words(job, program.role)}
    told = {*spelling.said.get(program.role, ()), *program.folders, *spelling.route.family.convert}
    for option in program.command.options.values():
        if option.required and not {option.name, *option.aliases} & (told | given):
            key = f"engine.options.{program.role}"
            message = f"{program.command.name} {program.command.release} wants {option.name}"
            choices = f" VALUE], VALUE one of {', '.join(option.choices)}" if option.choices else " VALUE]"
            hint = f"set it to [{option.name},{choices}"
            spelling.problems.append(in_job("release", key, message, hint))


def _keep(spelling: Spelling, program: Program, option: str, said: OptionWords) -> None:
    if said:
        spelling.said.setdefault(program.role, {})[option] = said
    else:
        spelling.left_out.setdefault(program.role, set()).add(option)


def _notes(job: JobFile, route: Route, context: Context) -> Iterator[str]:
    yield from _dtype_note(job, route, context)
    yield from _calibration_note(job, route)
    gathered = (job.engine.gather_context_logits, job.engine.gather_generation_logits)
    build = route.program("build") or route.program("build_py")
    one_of_two = any(gathered) and not all(gathered)
    if build is not None and one_of_two and "--gather_context_logits" not in build.command.options:
        yield f"{build.command.name} {route.release.version} gathers the logits of both prompt and answer."


def _dtype_note(job: JobFile, route: Route, context: Context) -> Iterator[str]:
    first = route.programs[0].command
    option = first.options.get("--dtype") or first.options.get("--storage-type")
    if job.engine.dtype != "auto" or context.dtype is not None or option is None:
        return
    if "auto" not in option.choices and option.default not in ("auto", None):
        yield (
            f"engine.dtype is auto, but {first.name} {route.release.version} takes {option.default} "
            "unless told, and the model's config.json cannot be read here: set engine.dtype."
        )


def _calibration_note(job: JobFile, route: Route) -> Iterator[str]:
    wanted = job.engine.quantization
    chosen = quantization.tool(wanted, by_build_py=route.by_build_py)
    if not quantization.is_calibrated(wanted, chosen) or wanted.calibration_dataset is not None:
        return
    program = route.program("quantize") or route.programs[0]
    option = program.command.options.get("--calib_dataset")
    default = f" ({option.default})" if option is not None and option.default else ""
    remedy = (
        "set engine.quantization.calibration_dataset to a local folder"
        if option is not None
        else "load it into the cache of Hugging Face datasets that the compute nodes see"
    )
    yield (
        f"{program.command.name} downloads its calibration samples{default}, which compute nodes often "
        f"cannot: {remedy}."
    )
