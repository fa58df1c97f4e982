"""Why a release cannot be told something, and which release could."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from packaging.version import Version

from trtllm_hpc.config.findings import nearest, shown
from trtllm_hpc.config.spelling.route import Route
from trtllm_hpc.config.spelling.wish import Role, Wish
from trtllm_hpc.versions import Command, Option, releases

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
        message = f"TensorRT-LLM {version} has no such value: {'; '.join(reasons)}"
        return message, f"choose another value, or leave {wish.key} out"
    told = sorted({sentence for way in wish.ways for sentence in _known(way.role, way.option, route)})
    instead = _instead(wish, route)
    history = f": {'; '.join(told)}" if told else ", and no release that is known here does"
    hint = f"leave {wish.key} out, or take a release that has it"
    return f"TensorRT-LLM {version} has no option for it{history}", instead or hint


def _known(role: Role, option: str, route: Route) -> Iterator[str]:
    sentence = lifetime(PROGRAMS[role], option, route.family.examples)
    if sentence is not None:
        yield sentence


def lifetime(program: str, option: str, family: str) -> str | None:
    """Which releases have an option, as a clause; ``None`` if none has it."""
    known = [release.version for release in releases() if release.command(program, family) is not None]
    having = [version for version in known if _has(version, program, option, family)]
    if not having:
        return None
    newer = [version for version in known if Version(version) > Version(having[-1])]
    if newer:
        since = "" if having[0] == known[0] else f" from {having[0]}"
        return f"{program} had {option}{since} until {having[-1]}, {newer[0]} dropped it"
    if known[-1] != releases()[-1].version:
        return (
            f"{program} had {option} from {having[0]} until {having[-1]}, the last release with that program"
        )
    return f"{program} has {option} since {having[0]}"


def _has(version: str, program: str, option: str, family: str) -> bool:
    release = next(release for release in releases() if release.version == version)
    command = release.command(program, family)
    return command is not None and command.find(option) is not None


def _instead(wish: Wish, route: Route) -> str | None:
    """What upstream says to write instead, where it says so."""
    for way in wish.ways:
        program = route.program(way.role)
        history = program.command.history(way.option) if program is not None else None
        if history is not None and history.replaced_by:
            return f"{way.option} became {history.replaced_by}; leave {wish.key} out"
    return None


def near(command: Command, word: str) -> str | None:
    """The option that a word was most likely meant to be."""
    return nearest(word, command.options)
