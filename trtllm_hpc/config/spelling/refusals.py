"""Why a release cannot be told something, and which release could."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from packaging.version import Version

from trtllm_hpc.config.findings import shown
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
    version, hint = route.release.version, f"leave {wish.key} out, or take a release that has it"
    told = "; ".join(dict.fromkeys(_known(wish, route)))
    if reasons:
        message = f"TensorRT-LLM {version} cannot do {shown(wish.value)}: {'; '.join(reasons)}"
        return (f"{message}; {told}" if told else message), f"choose another value, or leave {wish.key} out"
    history = f": {told}" if told else ", and no release that is known here does"
    return f"TensorRT-LLM {version} has no option for it{history}", _instead(wish, route) or hint


def _known(wish: Wish, route: Route) -> Iterator[str]:
    """The releases that could, by way."""
    family, version = route.family.examples, route.release.version
    for way in wish.ways:
        word = wish.value if way.means is None and isinstance(wish.value, str) else None
        having = _having(PROGRAMS[way.role], way.option, family, word)
        # One that this release has too is of another program than those of the route.
        if having and version not in having:
            yield _clause(PROGRAMS[way.role], " ".join(filter(None, (way.option, word))), family, having)


def lifetime(program: str, option: str, family: str) -> str | None:
    """Which releases have an option, as a clause; ``None`` if none has it."""
    having = _having(program, option, family, None)
    return _clause(program, option, family, having) if having else None


def _clause(program: str, what: str, family: str, having: Sequence[str]) -> str:
    known = [release.version for release in releases() if release.command(program, family) is not None]
    newer = [version for version in known if Version(version) > Version(having[-1])]
    if newer:
        since = "" if having[0] == known[0] else f" from {having[0]}"
        return f"{program} had {what}{since} until {having[-1]}, {newer[0]} dropped it"
    if known[-1] != releases()[-1].version:
        return f"{program} had {what} from {having[0]} until {having[-1]}, its last release"
    return f"{program} has {what} since {having[0]}"


@cache
def _having(program: str, option: str, family: str, word: str | None) -> tuple[str, ...]:
    """The versions, oldest first, whose program has the option and takes the word."""
    return tuple(each.version for each in releases() if _has(each.command(program, family), option, word))


def _has(command: Command | None, option: str, word: str | None) -> bool:
    found = command.find(option) if command is not None else None
    if found is None:
        return False
    return word is None or not found.choices or word in found.choices


def _instead(wish: Wish, route: Route) -> str | None:
    """What upstream says to write instead, where it says so."""
    for way in wish.ways:
        program = route.program(way.role)
        history = program.command.history(way.option) if program is not None else None
        if history is not None and history.replaced_by:
            return f"{way.option} became {history.replaced_by}; leave {wish.key} out"
    return None
