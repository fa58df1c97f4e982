"""Sentences on why a release refuses a program or an option, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trtllm_hpc.config.diagnostics import nearest
from trtllm_hpc.tensorrt_llm.releases.commands import (
    BY_FAMILY,
    Command,
    Option,
    families_with,
    load_command,
    releases_with,
)
from trtllm_hpc.tensorrt_llm.releases.data_files import parsed
from trtllm_hpc.tensorrt_llm.releases.release import Release, releases

_BUILDERS = ("build.py", "convert_checkpoint.py", "trtllm-build")


def no_program(release: Release, name: str, family: str) -> tuple[str, str | None]:
    """Why a release has no program ``name`` for ``family``: a sentence and a hint."""
    suffix = f" for {family}" if name in BY_FAMILY else ""
    sentence = f"TensorRT-LLM {release.version} has no {name}{suffix}"
    having = releases_with(name, family)
    if not having:
        hint = meant_family(release, name, family) if name in BY_FAMILY else None
        return f"{sentence}, nor has any other release known here", hint
    newer = parsed(having[0]) > parsed(release.version)
    when = f"it came with {having[0]}" if newer else f"the last with it is {having[-1]}"
    builders = _BUILDERS if name in _BUILDERS else ()
    there = [other for other in builders if load_command(release.version, other, family) is not None]
    return f"{sentence}: {when}", f"this release has {' and '.join(there)}" if there else None


def meant_family(release: Release, name: str, family: str) -> str:
    """A hint for an unknown family: the nearest name, and all names."""
    there = families_with(release.version, name)
    near = nearest(family, there)
    guess = f"did you mean {near}? " if near else ""
    return f"{guess}{name} exists for {', '.join(there)}" if there else "use another release"


@dataclass(frozen=True)
class Lifetime:
    """The releases that have an option of a program."""

    releases: tuple[str, ...]
    clause: str
    """Says so, to follow a colon."""


@cache
def option_lifetime(program: str, option: str, family: str, value: str | None = None) -> Lifetime | None:
    """Which releases have an option, one that takes ``value`` if given; ``None`` if none has it."""
    commands = {version: load_command(version, program, family) for version in releases_with(program, family)}
    having = {version: _taking(command, option, value) for version, command in commands.items()}
    taken = tuple(version for version, found in having.items() if found is not None)
    if not taken:
        return None
    # The value is worth a mention only where others would be refused.
    has_choices = any(found.choices for found in having.values() if found is not None)
    what = f"{option} {value}" if value is not None and has_choices else option
    versions = list(commands)
    newer = versions[versions.index(taken[-1]) + 1 :]
    if newer:
        since = "" if taken[0] == versions[0] else f" from {taken[0]}"
        return Lifetime(taken, f"{program} had {what}{since} until {taken[-1]}, {newer[0]} dropped it")
    if versions[-1] != releases()[-1].version:
        return Lifetime(taken, f"{program} had {what} from {taken[0]} until {taken[-1]}, its last release")
    return Lifetime(taken, f"{program} has {what} since {taken[0]}")


def _taking(command: Command | None, option: str, value: str | None) -> Option | None:
    """The option, if the program has it and takes the value."""
    found = command.find(option) if command is not None else None
    if found is None or (value is not None and found.choices and value not in found.choices):
        return None
    return found
