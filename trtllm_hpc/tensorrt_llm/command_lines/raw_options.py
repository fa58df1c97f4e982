"""``engine.options``: further words for upstream's programs, checked against the release's list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from trtllm_hpc.config.diagnostics import in_job, nearest, shown
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.tensorrt_llm.command_lines.managed_options import managing_key
from trtllm_hpc.tensorrt_llm.command_lines.option_request import Role
from trtllm_hpc.tensorrt_llm.command_lines.refusals import lifetime
from trtllm_hpc.tensorrt_llm.command_lines.toolchain import Route
from trtllm_hpc.tensorrt_llm.releases import Command, Option

RAW_ROLES: Sequence[Role] = tuple(role for role in get_args(Role) if role != "prepare")


@dataclass(frozen=True)
class _Word:
    """One word and what is wrong with it."""

    index: int
    message: str
    hint: str


def raw_words(job: JobFile, role: Role) -> tuple[str, ...]:
    """The further words for a program."""
    return tuple(getattr(job.engine.options, role)) if role in RAW_ROLES else ()


def raw_problems(job: JobFile, route: Route) -> Iterator[Diagnostic]:
    """What the release's programs would refuse, or what a key of the job file says already."""
    for role in RAW_ROLES:
        given = raw_words(job, role)
        program = route.program(role)
        if not given:
            continue
        if program is None:
            yield _unused(role, route)
            continue
        yield from _problems(given, role, program.command, route.family.examples)


def lora_problems(job: JobFile, command: Command) -> Iterator[Diagnostic]:
    """The same for ``hf_lora_convert.py``, which is beside the way from model to engine."""
    yield from _problems(tuple(job.engine.options.lora), "lora", command, "")


def _problems(given: tuple[str, ...], role: str, command: Command, family: str) -> Iterator[Diagnostic]:
    for found in _checked(given, role, command, family):
        field = f"engine.options.{role}[{found.index}]"
        yield in_job("release", field, found.message, found.hint, given[found.index])


def raw_notes(job: JobFile, route: Route) -> Iterator[str]:
    """Words that the release takes and does nothing with."""
    for program in route.programs:
        for word in raw_words(job, program.role):
            option = program.command.find(word.partition("=")[0])
            if option is not None and option.ignored:
                yield f"engine.options.{program.role}: {word} does nothing. {option.ignored}"


def _unused(role: Role, route: Route) -> Diagnostic:
    programs = ", then ".join(program.command.name for program in route.programs)
    message = (
        f"are for a program that has no part in this: TensorRT-LLM {route.release.version} runs {programs}"
    )
    hint = "remove them, or write them under the program that they are for"
    return in_job("release", f"engine.options.{role}", message, hint)


def _checked(given: Sequence[str], role: str, command: Command, family: str) -> Iterator[_Word]:
    open_option: Option | None = None
    values = 0
    for index, word in enumerate(given):
        if not _is_option(word):
            values += 1
            yield from _value(index, word, open_option, values)
            continue
        if open_option is not None and open_option.form != "flag" and values == 0:
            yield _Word(index - 1, f"{open_option.name} wants a value after it", "add the value")
        name, equals, value = word.partition("=")
        open_option, values = command.find(name), 0
        yield from _option(index, name, role, command, family)
        if equals and open_option is not None:
            values = 1
            yield from _value(index, value, open_option, values)
    if open_option is not None and open_option.form != "flag" and values == 0:
        yield _Word(len(given) - 1, f"{open_option.name} wants a value after it", "add the value")


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit()


def _option(index: int, name: str, role: str, command: Command, family: str) -> Iterator[_Word]:
    option = command.find(name)
    if option is None:
        yield _Word(index, _unknown(name, command, family), _instead(name, command))
        return
    key = managing_key(role, option.name)
    if key is not None:
        yield _Word(index, f"{name} is set by the toolkit itself", key)


def _unknown(name: str, command: Command, family: str) -> str:
    history = lifetime(command.name, name, command.family or family)
    told = f": {history}" if history is not None else ""
    return f"{command.name} {command.release} has no option {shown(name)}{told}"


def _instead(name: str, command: Command) -> str:
    history = command.history(name)
    if history is not None and history.replaced_by:
        return f"write {history.replaced_by} instead"
    near = nearest(name, command.options)
    shows = f"trtllm-hpc versions show {command.release} {command.name}"
    return f"did you mean {near}? '{shows}' lists all" if near else f"'{shows}' lists those that it has"


def _value(index: int, word: str, option: Option | None, count: int) -> Iterator[_Word]:
    if option is None:
        if count == 1 and index == 0:
            yield _Word(
                index, f"{shown(word)} belongs to no option", "begin with an option, e.g. --log_level"
            )
        return
    if option.form == "flag" or (count > 1 and option.form != "list"):
        message = f"{shown(word)} is one word more than {option.name} takes"
        yield _Word(index, message, "remove it")
    elif option.choices and word not in option.choices:
        message = f"{option.name} does not take {shown(word)}"
        yield _Word(index, message, f"write one of {', '.join(option.choices)}")
    elif option.form == "switch" and not option.choices and word not in ("enable", "disable"):
        yield _Word(index, f"{option.name} does not take {shown(word)}", "write enable or disable")
