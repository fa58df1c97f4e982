"""Why a release cannot be told something, and which release could."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from packaging.version import Version

from trtllm_hpc.config.diagnostics import nearest, shown
from trtllm_hpc.tensorrt_llm.command_lines.option_request import Role, Wish
from trtllm_hpc.tensorrt_llm.command_lines.toolchain import Route
from trtllm_hpc.tensorrt_llm.releases import Command, Option, releases

PROGRAMS: dict[Role, str] = {
    "build_py": "build.py",
    "prepare": "hf_gpt_convert.py",
    "convert": "convert_checkpoint.py",
    "quantize": "quantize.py",
    "build": "trtllm-build",
}


def too_much(command: Command, option: Option, value: Any) -> str:
    """An option is there but does not take the value."""
    if option.choices:
        return f"{command.name}'s {option.name} takes {', '.join(option.choices)}"
    return f"{command.name}'s {option.name} cannot say {shown(value)}"


def refusal(wish: Wish, route: Route, reasons: Sequence[str]) -> tuple[str, str]:
    """A message and a hint for a wish that no program of the route can be told."""
    version = route.release.version
    if reasons:
        told = "; ".join(dict.fromkeys((*reasons, *_known(wish, route, exactly=True))))
        message = f"TensorRT-LLM {version} cannot do {shown(wish.value)}: {told}"
        return message, f"choose another value, or leave {wish.key} out"
    told = "; ".join(dict.fromkeys(_known(wish, route, exactly=False)))
    history = f": {told}" if told else ", and no release that is known here does"
    hint = f"leave {wish.key} out, or take a release that has it"
    if not told:
        near = nearest(wish.key.rpartition(".")[2], _plugins(route)) if _is_plugin(wish) else None
        hint = f"did you mean '{near}'?" if near else f"leave {wish.key} out"
    return f"TensorRT-LLM {version} has no option for it{history}", _instead(wish, route) or hint


def _is_plugin(wish: Wish) -> bool:
    return wish.key.startswith("engine.plugins.")


def _plugins(route: Route) -> list[str]:
    """Names of the plugins that the route's programs can be told of."""
    options = (option for program in route.programs for option in program.command.options)
    names = (re.fullmatch(r"--(?:use_)?(.+)_plugin", option) for option in options)
    return [name[1] for name in names if name is not None]


def _known(wish: Wish, route: Route, *, exactly: bool) -> Iterator[str]:
    """The releases that could, by way; ``exactly`` leaves out those that might not take the value."""
    for way in wish.ways:
        if isinstance(way.means, Mapping) and wish.value not in way.means:
            continue
        program = route.program(way.role)
        family = program.command.family if program is not None else None
        told = isinstance(wish.value, str) and (exactly or way.means is None)
        word = wish.value if told and not isinstance(way.means, Mapping) else None
        found = _lifetime(PROGRAMS[way.role], way.option, family or route.family.examples, word)
        # One that this release has too is of another program than those of the route.
        if found is not None and route.release.version not in found[0]:
            yield found[1]


def lifetime(program: str, option: str, family: str) -> str | None:
    """Which releases have an option, as a clause; ``None`` if none has it."""
    found = _lifetime(program, option, family, None)
    return found[1] if found is not None else None


@cache
def _lifetime(program: str, option: str, family: str, word: str | None) -> tuple[tuple[str, ...], str] | None:
    """The versions that have an option and take a word, and the clause that says so."""
    known = [each for each in releases() if each.command(program, family) is not None]
    commands = [(each.version, each.command(program, family)) for each in known]
    having = [(version, _taking(command, option, word)) for version, command in commands]
    taken = tuple(version for version, found in having if found is not None)
    if not taken:
        return None
    # The word is worth a mention only where others would be refused.
    choices = any(found.choices for _, found in having if found is not None)
    what = f"{option} {word}" if word is not None and choices else option
    newer = [each.version for each in known if Version(each.version) > Version(taken[-1])]
    if newer:
        since = "" if taken[0] == known[0].version else f" from {taken[0]}"
        return taken, f"{program} had {what}{since} until {taken[-1]}, {newer[0]} dropped it"
    if known[-1] is not releases()[-1]:
        return taken, f"{program} had {what} from {taken[0]} until {taken[-1]}, its last release"
    return taken, f"{program} has {what} since {taken[0]}"


def _taking(command: Command | None, option: str, word: str | None) -> Option | None:
    """The option, if the program has it and takes the word."""
    found = command.find(option) if command is not None else None
    if found is None or (word is not None and found.choices and word not in found.choices):
        return None
    return found


def _instead(wish: Wish, route: Route) -> str | None:
    """What upstream says to write instead, where it says so of the newest spelling."""
    gone = [
        history
        for way in wish.ways
        if (program := route.program(way.role)) is not None
        and (history := program.command.history(way.option)) is not None
        and history.last is not None
        and Version(history.last) < Version(route.release.version)
    ]
    last = max(gone, key=lambda history: Version(str(history.last)), default=None)
    if last is None or last.replaced_by is None:
        return None
    placeholder, where, _ = last.replaced_by.partition(" in the config.pbtxt of tensorrt_llm")
    if where:
        return f"leave {wish.key} out and set repository.parameters.tensorrt_llm.{placeholder}"
    nothing, _, why = last.replaced_by.partition("nothing: ")
    if not nothing:
        return f"leave {wish.key} out: {why}"
    return f"leave {wish.key} out; {last.name} became {last.replaced_by}"
