"""The table of causes: the files in ``data/``, read once and only when a log is to be explained."""

from __future__ import annotations

import enum
import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.logs.search import TextIndex, literals
from trtllm_hpc.paths import site_config_folder, user_config_folder

AREAS = (
    *("slurm", "container", "mpi", "nccl", "cuda", "tensorrt_llm"),
    *("triton", "disk", "process", "python", "kinds"),
)
"""The files, in the order in which causes that match the same line are tried."""
SPECIFIC = ("option", "code", "path", "message")
"""Reasons why an entry can be certain."""
READY = -1
"""Place of a text by which a server says that it is ready."""
_GROUP = re.compile(r"(?<!\$)\{(\w+)\}")
_LONGEST_VALUE = 160
_CLAUSE_END = re.compile(r"(?<=[.:]) (?=\S)")


class Kind(str, enum.Enum):
    """Relation of a match to a failure."""

    ROOT = "root"
    """It may be the cause itself."""
    CONSEQUENCE = "consequence"
    """Something else has failed before, often on another rank."""
    NOISE = "noise"
    """Healthy runs print it too, e.g. on machines without InfiniBand."""


class Degree(str, enum.Enum):
    """Certainty of a cause."""

    KNOWN = "known cause"
    """Only this cause writes its line, and no other error stands before it."""
    LIKELY = "likely cause"
    """Its line shows the kind of failure."""
    FIRST_ERROR = "first error"
    """Its line is an error, or a consequence, and no other error that explains it is seen."""


@dataclass(frozen=True)
class Cause:
    """One entry of the table."""

    id: str
    area: str
    kind: Kind
    patterns: tuple[str, ...]
    """Regular expressions; the first line of each match has one of :func:`texts_of` them."""
    sentence: str
    """The failure in one sentence; ``{name}`` is a named group of the patterns."""
    sources: tuple[str, ...]
    """Public threads or files with such a log: ``OWNER/REPOSITORY#NUMBER`` or ``OWNER/REPOSITORY:PATH``."""
    next: str = ""
    """Advice for the next step, likewise; empty for noise."""
    lines: int = 1
    """Most lines that a match may span."""
    generic: bool = False
    """It only names the kind of failure: a cause that says more goes first."""
    first: bool = False
    """It stands for an error that no other entry knows."""
    specific: str = ""
    """Why the entry is certain: only this cause writes this ``option``, ``code``, ``path`` or ``message``.
    Without it an entry is a likely cause."""
    follows: bool = False
    """It is a consequence where an entry that does not follow stands before it: time limits, exit lines."""
    calm: bool = False
    """It counts also where the line calls itself information or a warning."""
    own: str = ""
    """Id of the entry that stands for it where process ``{pid}`` is the one that writes the log."""
    survivable: bool = False
    """Programs often go on after it."""
    fatal: bool = True
    """Whether it can end a process; else it fails single requests."""
    states: tuple[str, ...] = ()
    """Slurm's job states that mean the same."""
    after: tuple[str, ...] = ()
    """Ids of causes of which it is a consequence, where a log of the job shows one of them."""

    @property
    def degree(self) -> Degree:
        """Certainty that a match gives."""
        if self.first or self.kind is Kind.CONSEQUENCE:
            return Degree.FIRST_ERROR
        return Degree.KNOWN if self.specific else Degree.LIKELY

    def filled(self, groups: dict[str, str]) -> tuple[str, str]:
        """Return ``sentence`` and ``next`` with the groups of a match filled in."""
        longest = _LONGEST_VALUE if self.patterns else None
        return filled_in(self.sentence, groups, longest), filled_in(self.next, groups, longest)


def filled_in(template: str, groups: dict[str, str], longest: int | None = None) -> str:
    """Return a template with groups of a match filled in, each cut to ``longest``.

    What follows a stop or a colon is left out if it only tells groups that the match does not have.
    """
    first, *others = _CLAUSE_END.split(template)
    told = [first]
    for clause in others:
        names = _GROUP.findall(clause)
        if not names or any(map(groups.get, names)):
            told.append(clause)
    filled = _GROUP.sub(lambda match: groups.get(match[1], "")[:longest].strip(), " ".join(told))
    text = re.sub(r" +(?=[:.;,](?: |$)|$)", "", re.sub(r" +", " ", filled))
    return f"{text[:-1]}." if text.endswith(":") else text


_KEYS = {field.name for field in fields(Cause)} - {"id", "area"} | {"off"}
"""Keys of an entry in a table."""


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern of an entry, compiled; few are ever needed, and all take long."""
    return re.compile(pattern, re.MULTILINE)


@cache
def texts_of(pattern: str) -> tuple[str, ...]:
    """Return plain texts of which the first line of each match of a pattern has one."""
    return literals(pattern.partition(r"\n")[0])


@cache
def _rules() -> list[dict[str, Any]]:
    return [{**rule, "when": re.compile(rule["when"])} for rule in _data("advice")["rule"]]


@cache
def words() -> dict[str, re.Pattern[str]]:
    """Return the expressions that tell kinds of lines apart, by the names in ``data/words.toml``."""
    return {name: re.compile(text, re.VERBOSE) for name, text in _data("words").items()}


def advice(text: str, places: dict[str, str]) -> str:
    """Return what to do about an error that no entry knows, by what its text holds; empty if no rule fits."""
    places = {"place": "", "package": ""} | places
    text = "\n".join((text, places["place"], places["package"]))
    places["place"] = places.get("caller") or places["place"]
    said: list[str] = []
    for rule in _rules():
        match = rule["when"].search(text)
        if match is None or (said and rule.get("last")):
            continue
        groups = {name: value or "" for name, value in match.groupdict().items()}
        said.append(filled_in(rule["next"], places | groups))
        if not rule.get("more"):
            break
    return " ".join(said)


class Tables:
    """The shipped entries and those of the user and the site; each value is made when it is first needed."""

    def __init__(self, site: Path | None) -> None:
        self.site = site

    @cached_property
    def own(self) -> tuple[dict[Path, dict[str, Cause | None]], list[ConfigError]]:
        """The entries of the user's and the site's tables by file, and what is wrong with other files."""
        entries, errors = {}, []
        folders = (site_config_folder() / "causes", user_config_folder() / "causes", self.site)
        for file in (file for folder in filter(None, folders) for file in sorted(folder.glob("*.toml"))):
            try:
                entries[file] = read_table(file)
            except ConfigError as error:
                errors.append(error)
        return entries, errors

    @cached_property
    def causes(self) -> dict[str, Cause]:
        """Every cause by its id; those of :attr:`own` come before the shipped ones."""
        own = {name: entry for entries in self.own[0].values() for name, entry in entries.items()}
        shipped = {
            name: _cause(name, area, entry)
            for area in AREAS
            for name, entry in _data(area).items()
            if name not in own
        }
        return {name: cause for name, cause in (own | shipped).items() if cause is not None}

    @cached_property
    def patterns(self) -> list[tuple[Cause, str]]:
        """The patterns of all causes, each after its cause."""
        return [(cause, pattern) for cause in self.causes.values() for pattern in cause.patterns]

    @cached_property
    def first_pass(self) -> tuple[str, ...]:
        """The texts of which each line that counts has one: it is an error, or an entry knows it.

        A text that begins with a line end stands at the beginning of its line.
        """
        texts = {text for _, pattern in self.patterns for text in texts_of(pattern)}
        return tuple(sorted(texts.union(*_data("first_pass").values())))

    @cached_property
    def index(self) -> TextIndex:
        """The texts that the patterns need, with the places of the patterns."""
        texts = [
            (text, place) for place, (_, pattern) in enumerate(self.patterns) for text in texts_of(pattern)
        ]
        ready = [(text, READY) for text in literals(words()["ready"].pattern)]
        return TextIndex((text.encode(), place) for text, place in [*texts, *ready])


_tables = Tables(None)


def tables() -> Tables:
    """Return the tables in use."""
    return _tables


def causes() -> dict[str, Cause]:
    """Return every cause by its id."""
    return _tables.causes


def use_site_tables(folder: Path | None) -> None:
    """Read the tables in a folder as well, as a cluster profile names it (``causes_folder``)."""
    global _tables
    if folder != _tables.site:
        _tables = Tables(folder)


def read_table(file: Path) -> dict[str, Cause | None]:
    """Return the entries of a table; an entry with ``off = true`` is ``None``: it switches a shipped one off.

    Raises ConfigError, with every error in the file.
    """
    try:
        entries = _parsed(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        message = f"is no TOML file that can be read: {error}"
        raise ConfigError([Diagnostic("causes-file", message, str(file))]) from None
    problems = [
        Diagnostic("causes-entry", problem, str(file), name)
        for name, entry in entries.items()
        for problem in _problems(entry)
    ]
    if problems:
        raise ConfigError(problems, hint="docs/reference/causes.md shows the form of an entry.")
    # A site knows its own programs: an entry is certain unless it is generic.
    return {
        name: None
        if entry.pop("off", False)
        else _cause(name, "own", {"specific": "" if entry.get("generic") else "message"} | entry)
        for name, entry in entries.items()
    }


def _problems(entry: Any) -> Iterator[str]:
    """Yield what is wrong with an entry of a table."""
    if not isinstance(entry, dict):
        yield "is not the table of an entry: [name] begins one"
        return
    if entry.get("off"):
        return
    yield from (f"has no key {key}" for key in ("kind", "patterns", "sentence", "next") if key not in entry)
    yield from (f"has a key {key}, which there is not" for key in entry.keys() - _KEYS)
    for key, values in (("kind", tuple(Kind)), ("specific", SPECIFIC)):
        if key in entry and entry[key] not in values:
            yield f"{key} is {entry[key]!r}; it is one of {', '.join(values)}"
    for text in entry.get("patterns", ()):
        try:
            names = re.compile(text).groupindex.keys()
        except (re.error, TypeError) as error:
            yield f"the pattern {text!r} is no regular expression: {error}"
            continue
        if not texts_of(text):
            yield f"the pattern {text!r} has no text of its own that could be looked for"
        if unknown := set(_GROUP.findall(entry.get("sentence", "") + entry.get("next", ""))) - names:
            yield f"the pattern {text!r} has no group {', '.join(sorted(unknown))}, which the texts fill in"


def _parsed(text: str) -> dict[str, Any]:
    # Imported here: most commands explain no log.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    parsed: dict[str, Any] = toml.loads(text)
    return parsed


def _data(name: str) -> dict[str, Any]:
    return _parsed((resources.files("trtllm_hpc.logs.causes") / "data" / f"{name}.toml").read_text("utf-8"))


def _cause(name: str, area: str, entry: dict[str, Any]) -> Cause:
    lists = {key: tuple(entry.get(key, ())) for key in ("patterns", "sources", "states", "after")}
    return Cause(name, area, **{**entry, **lists, "kind": Kind(entry["kind"])})
