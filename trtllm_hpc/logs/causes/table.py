"""The table of causes: the files in ``data/``, read once and only when a log is to be explained."""

from __future__ import annotations

import enum
import importlib
import re
import sys
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

from trtllm_hpc.logs.anchors import required_texts

AREAS = ("slurm", "container", "mpi", "nccl", "cuda", "tensorrt_llm", "triton", "disk", "process", "python")
"""The files, in the order in which causes that match the same line are tried."""

_GROUP = re.compile(r"(?<!\$)\{(\w+)\}")
_LONGEST_VALUE = 160
_CLAUSE_END = re.compile(r"(?<=[.:]) (?=\S)")


class Kind(str, enum.Enum):
    """What a match says about a failure."""

    ROOT = "root"
    """It may be the cause itself."""
    CONSEQUENCE = "consequence"
    """Something else has failed before, often on another rank."""
    NOISE = "noise"
    """Printed by runs that are well, e.g. on machines without InfiniBand."""


@dataclass(frozen=True)
class Pattern:
    """A regular expression, and texts of which the first line of each match has one."""

    text: str
    anchors: tuple[str, ...]

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The compiled expression; few are ever needed, and all take longer than many a command."""
        return re.compile(self.text, re.MULTILINE)


@dataclass(frozen=True)
class Cause:
    """One entry of the table."""

    id: str
    area: str
    kind: Kind
    patterns: tuple[Pattern, ...]
    sentence: str
    """What has happened; ``{name}`` is a named group of the patterns."""
    sources: tuple[str, ...]
    """Public threads or files with such a log: ``OWNER/REPOSITORY#NUMBER`` or ``OWNER/REPOSITORY:PATH``."""
    next: str = ""
    """What to do about it, likewise; empty for noise."""
    lines: int = 1
    """How many lines a match may span."""
    generic: bool = False
    """It only names the kind of failure: a cause that says more goes first."""
    fatal: bool = True
    """Whether it can end a process; else it fails single requests."""
    states: tuple[str, ...] = ()
    """Slurm's job states that mean the same."""

    def told(self, template: str, groups: dict[str, str]) -> str:
        """Return ``sentence`` or ``next`` with the groups of a match filled in.

        What follows a stop or a colon is left out if it only tells groups that the match does not have.
        """
        first, *others = _CLAUSE_END.split(template)
        told = [first]
        for clause in others:
            names = _GROUP.findall(clause)
            if not names or any(map(groups.get, names)):
                told.append(clause)
        filled = _GROUP.sub(lambda match: groups.get(match[1], "")[:_LONGEST_VALUE].strip(), " ".join(told))
        text = re.sub(r" +([:.;,]|$)", r"\1", re.sub(r" +", " ", filled))
        return f"{text[:-1]}." if text.endswith(":") else text


@cache
def causes() -> dict[str, Cause]:
    """Return every cause by its id, in the order of the table."""
    # Imported here: most commands explain no log.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    folder = resources.files("trtllm_hpc.logs.causes") / "data"
    table: dict[str, Cause] = {}
    for area in AREAS:
        entries = toml.loads((folder / f"{area}.toml").read_text("utf-8"))
        table.update({name: _cause(name, area, entry) for name, entry in entries.items()})
    return table


@cache
def cause_of_state(state: str) -> Cause | None:
    """Return the cause that a job's state in Slurm stands for."""
    return next((cause for cause in causes().values() if state in cause.states), None)


def _cause(name: str, area: str, entry: dict[str, Any]) -> Cause:
    patterns = tuple(Pattern(text, required_texts(text)) for text in entry.get("patterns", ()))
    lists = {key: tuple(entry.get(key, ())) for key in ("sources", "states")}
    return Cause(name, area, **{**entry, **lists, "kind": Kind(entry["kind"]), "patterns": patterns})
