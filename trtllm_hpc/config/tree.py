"""Parse YAML files into plain Python data, with the file and line of every value.

Files are YAML 1.2 (core schema) without tags, aliases, directives and multiple documents. Keys are text, and
duplicate keys are reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import Scanner

from trtllm_hpc.config.diagnostics import Path, dotted
from trtllm_hpc.errors import ConfigError, Diagnostic

_MAX_DEPTH, _MAX_DIGITS = 16, 40
"""Above the needs of every key, and below the limits of Python's recursion and floats."""

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_SURROGATE = re.compile("[\ud800-\udfff]")


class Place(NamedTuple):
    """The file or option, and the line, in which a value was written."""

    file: str
    """Path of a file, or an option such as ``--set``."""
    line: int | None = None
    """Line number in the file; ``None`` in an option."""
    prefix: str = ""
    """Text before keys in messages, e.g. ``job_defaults.``."""
    folder: str = "."
    """Folder in which the value's relative paths start."""
    typed: str | None = None
    """In an option: the text of a number or bool, which may be text whose quotes a shell removed."""


@dataclass(frozen=True)
class Tree:
    """Plain data with the place of each value."""

    data: Any
    places: dict[Path, Place]
    """Places by path in ``data``."""

    @classmethod
    def of(cls, data: Any, place: Place) -> Tree:
        """Return ``data`` as a tree in which every value has the same place."""
        return cls(data, dict.fromkeys(_paths(data), place))

    def at(self, *path: str | int) -> Any:
        """Return the value at a path; ``None`` if the path does not exist."""
        return _value_at(self.data, path)

    def section(self, *path: str | int) -> Tree:
        """Return the part at a path as a separate tree."""
        depth = len(path)
        places = {inner[depth:]: place for inner, place in self.places.items() if inner[:depth] == path}
        return Tree(self.at(*path), places)

    def under(self, *keys: str) -> Tree:
        """Return this tree nested in sections with these keys."""
        data, above = self.data, self.places[()]._replace(typed=None)
        for key in reversed(keys):
            data = {key: data}
        places = {keys[:depth]: above for depth in range(len(keys))}
        return Tree(data, places | {(*keys, *path): place for path, place in self.places.items()})

    def changed(self, path: Path, value: Any) -> Tree:
        """Return the tree with another value at an existing path."""
        data = deepcopy(self.data)
        _value_at(data, path[:-1])[path[-1]] = value
        return Tree(data, self.places)

    def without(self, *paths: Path) -> Tree:
        """Return the tree without the keys at these paths, which may be missing."""
        data, places = deepcopy(self.data), self.places
        for path in paths:
            section = _value_at(data, path[:-1])
            if isinstance(section, dict):
                section.pop(path[-1], None)
            places = {other: places[other] for other in places if other[: len(path)] != path}
        return Tree(data, places)

    def nearest(self, path: Path) -> Path:
        """Return the path if it exists, else the path of the innermost existing section around it."""
        while path not in self.places:
            path = path[:-1]
        return path

    def diagnostic(self, code: str, path: Path, message: str, **more: Any) -> Diagnostic:
        """Return a diagnostic about the value at a path, with its file and line."""
        place = self.places[self.nearest(path)]
        return Diagnostic(code, message, place.file, place.prefix + dotted(path), place.line, **more)

    def placed(self, diagnostic: Diagnostic) -> Diagnostic:
        """Return the diagnostic with the file and line of its field."""
        fields, field = {dotted(path): path for path in self.places}, diagnostic.field
        while field not in fields:  # up to the innermost existing section
            field = field[: max(field.rfind("."), field.rfind("["), 0)]
        place = self.places[fields[field]]
        return replace(diagnostic, file=place.file, field=place.prefix + diagnostic.field, line=place.line)


def _value_at(data: Any, path: Path) -> Any:
    for part in path:
        try:
            data = data[part]
        except (LookupError, TypeError):
            return None
    return data


def _paths(data: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from _paths(value, (*path, key))


def _unusable(code: str, message: str, line: int, hint: str | None = None) -> ConfigError:
    """Return an error that makes the whole text unusable."""
    return ConfigError([Diagnostic(code, message, line=line, hint=hint)])


def parse(text: str, place: Place, option: Sequence[str] = ()) -> tuple[Tree | None, list[Diagnostic]]:
    """Parse a YAML document: a file, or the value of an option such as ``--set`` whose keys are ``option``.

    Returns:
        The tree and the diagnostics. Without a tree there is at least one diagnostic; with a tree they are
        about duplicate keys.
    """
    wrong: list[Diagnostic] = []
    places: dict[Path, Place] = {(): place if option else place._replace(line=1)}

    def value_of(node: Node, path: Path, line: int | None = None) -> Any:
        """Return the plain value of a node and record its place; ``line`` is the line of its key."""
        here = place if option else place._replace(line=line or node.start_mark.line + 1)
        places[path] = here
        if isinstance(node, MappingNode):
            return mapping_of(node, path)
        if isinstance(node, SequenceNode):
            return [value_of(item, (*path, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        value = _scalar(node)
        if option and value is not None and not isinstance(value, str):
            places[path] = here._replace(typed=node.value)
        return value

    def mapping_of(node: MappingNode, path: Path) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                raise _unusable("wrong-type", "a key must be text, not a list or a mapping", line)
            key = _scalar(key_node)
            if not isinstance(key, str):
                message = f"the key {key_node.value!r} must be text"
                raise _unusable("wrong-type", message, line, "write it in quotes")
            inner = (*path, key)
            if key not in mapping:
                mapping[key] = value_of(value_node, inner, line)
                continue
            first = places[inner]
            message = "is set twice" + (f", first on line {first.line}" if first.line else "")
            field, again = first.prefix + dotted((*option, *inner)), line if first.line else None
            hint = "keep one of the two"
            wrong.append(Diagnostic("duplicate-key", message, first.file, field, again, hint=hint))
        return mapping

    try:
        root = _compose(text)
        data = value_of(root, ()) if root is not None else None
    except ConfigError as error:
        field = (place.prefix + dotted(tuple(option))).rstrip(".")
        fatal = error.diagnostics[0]
        line = None if option else fatal.line
        return None, [*wrong, replace(fatal, file=place.file, field=field, line=line)]
    return Tree(data, places).under(*option), wrong


class _PlainScanner(Scanner):
    """Refuses tags, aliases and directives, which ruamel would resolve."""

    def fetch_tag(self) -> None:
        self._refuse("a tag ('!...')", "remove the tag; only plain values are read")

    def fetch_alias(self) -> None:
        self._refuse("an alias ('*...')", "write the value instead of the alias")

    def fetch_directive(self) -> None:
        self._refuse("a directive ('%...')", "remove the line; files are read as YAML 1.2")

    def _refuse(self, what: str, hint: str) -> None:
        raise _unusable("bad-yaml", f"contains {what}", self.reader.line + 1, hint)


def _compose(text: str) -> Node | None:
    """Return ruamel's node tree, in which every key and value has its line.

    ruamel's constructors are not used: they stop at the first duplicate key, and do not read ``1_000``,
    ``2001-01-01`` and ``<<`` as text.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner, yaml.max_depth = _PlainScanner, _MAX_DEPTH
    try:
        root: Node | None = yaml.compose(text)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"is not YAML: the character {chr(error.character)!r} is allowed only as an escape"
        hint = "remove it, or write it as an escape in double quotes"
        raise _unusable("bad-yaml", message, line, hint) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        if isinstance(error, MaxDepthExceededError):
            message = f"is nested more than {_MAX_DEPTH} levels deep"
            raise _unusable("too-large", message, line) from None
        problem = " ".join(str(part) for part in (error.context, error.problem) if part)
        hint = "see https://yaml.org/spec/1.2.2"
        if r"\t" in problem:
            hint = "indent with spaces, not with tabs"
        elif "another document" in problem:
            hint = "keep one document in a file"
        raise _unusable("bad-yaml", f"is not YAML: {problem}", line, hint) from None
    except (YAMLError, ValueError, OverflowError) as error:
        # Not ruamel's own errors: its chr() refuses "\UFFFFFFFF", for example.
        raise _unusable("bad-yaml", f"is not YAML: {error}", 1) from None
    return root


def _scalar(node: ScalarNode) -> str | int | float | bool | None:
    """Convert an unquoted scalar by YAML 1.2's core schema: ``on`` and ``08:00`` stay text."""
    text: str = node.value
    line = node.start_mark.line + 1
    if _SURROGATE.search(text):
        raise _unusable("bad-yaml", "contains a lone surrogate, which UTF-8 cannot encode", line)
    if node.style is not None:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            message = f"a number of {len(text)} digits is too large for every key"
            raise _unusable("out-of-range", message, line)
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
    return text
